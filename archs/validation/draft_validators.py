"""Validate that keys and tensors of a draft model's file belong together; used in conversion, validation and
runtime.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..families.deepseek4 import DEEPSEEK4
from ..families.drafts import EAGLE3, GEMMA4_ASSISTANT
from ..hparams.file_keys import Keys
from ..hparams.model_hparams import HParams, read_hparams
from ..layered import Fault
from ..spec import Architecture, Tensors
from .model_validators import faults, validate_keys

MASK = "tokenizer.ggml.mask_token_id"
NEEDED = {
    EAGLE3.name: (
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "target_layers",
        "target_hidden_size",
        "attention.layer_norm_rms_epsilon",
    )
}


def check_draft(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> None:
    """Raise ModelError naming the first key or tensor that does not fit the others."""
    if fault := next(validate_draft(architecture, metadata, tensors), None):
        raise ModelError(f"the draft's {fault}", hint="`gguftools validate` lists all that is wrong with the file")


def validate_draft(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> Iterator[Fault]:
    """Return contradictions. Later steps need earlier ones to have found nothing."""
    name = architecture.name
    if name == GEMMA4_ASSISTANT.name:
        yield from _assistant(architecture, metadata, tensors)
        return
    if name not in NEEDED:
        yield from _block(architecture, metadata, tensors)
        return
    if problems := _of_keys(architecture, NEEDED[name], metadata, tensors) or [
        *_numbers(Keys.of(architecture, metadata))
    ]:
        yield from problems
        return
    numbers = read_hparams(architecture, metadata)
    own = numbers.layers[0]
    yield from _wrong_factors(tensors, numbers)
    if own.rope_width % 2 or own.rope_width > own.key_width:
        yield Fault(f"{name}.rope.dimension_count", f"is {own.rope_width}; heads are {own.key_width} wide")
        return
    shapes, needed = _eagle3(architecture, metadata, tensors)
    yield from (Fault(each, "is missing") for each in sorted(needed - set(tensors)))
    for each, shape in shapes.items():
        if each in tensors and tensors[each].shape != shape:
            yield Fault(each, f"has shape {list(tensors[each].shape)}; {list(shape)} is expected")
    if "d2t" in tensors and (problem := _wrong_ids(tensors["d2t"], metadata)):
        yield Fault("d2t", problem)


def as_layers(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an assistant (Gemma 4) as if its layers belonged to a model with its own keys and values."""
    name = GEMMA4_ASSISTANT.name
    return {**metadata, f"{name}.nextn_predict_layers": 0, f"{name}.attention.shared_kv_layers": 0}


def _of_keys(
    architecture: Architecture, needed: Sequence[str], metadata: Mapping[str, Any], tensors: Tensors
) -> list[Fault]:
    """Return missing or invalid keys, which all other checks need."""
    names = [f"{architecture.name}.{key}" for key in needed]
    missing = [Fault(name, "is missing; who runs the draft needs it") for name in names if name not in metadata]
    return missing or validate_keys(architecture, metadata, tensors)


def _assistant(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> Iterator[Fault]:
    name, whole = architecture.name, as_layers(metadata)
    needed = ("block_count", "embedding_length", "embedding_length_out", "attention.head_count")
    if problems := _of_keys(architecture, needed, whole, tensors):
        yield from problems
        return
    try:
        numbers = read_hparams(architecture, whole)
    except ModelError as error:
        yield Fault("model", str(error))
        return
    width, wide = numbers.width, int(whole[f"{name}.embedding_length_out"])
    shapes: dict[str, tuple[int, ...]] = {
        "nextn.pre_projection.weight": (width, 2 * wide),
        "nextn.post_projection.weight": (wide, width),
        "output_norm.weight": (width,),
        "token_embd.weight": (len(metadata.get("tokenizer.ggml.tokens", ())), width),
    }
    yield from _wrong_factors(tensors, numbers)
    widths = whole.get(f"{name}.feed_forward_length", 0)
    for i, own in enumerate(numbers.layers):
        inner = int(widths[i] if hasattr(widths, "__len__") else widths)
        shapes |= {
            f"blk.{i}.{role}.weight": shape
            for role, shape in {
                "attn_norm": (width,),
                "ffn_norm": (width,),
                "attn_q": (own.heads * own.key_width, width),
                "attn_output": (width, own.heads * own.value_width),
                "attn_q_norm": (own.key_width,),
                "ffn_gate": (inner, width),
                "ffn_up": (inner, width),
                "ffn_down": (width, inner),
                "post_attention_norm": (width,),
                "post_ffw_norm": (width,),
                "layer_output_scale": (1,),
            }.items()
        }
        if own.rope_width % 2 or own.rope_width > own.key_width:
            yield Fault(f"{name}.rope.dimension_count", f"is {own.rope_width}; heads are {own.key_width} wide")
            return
    yield from _of_shapes(shapes, tensors)


def _block(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> Iterator[Fault]:
    """Validate draft models that write a block of tokens at once."""
    name = architecture.name
    needed = ("block_count", "embedding_length", "block_size", "target_layers")
    if problems := _of_keys(architecture, needed, metadata, tensors):
        yield from problems
        return
    mask = metadata.get(MASK, 0)
    if isinstance(mask, bool) or not isinstance(mask, (int, np.integer)) or mask < 0:
        yield Fault(MASK, "is no token id")
        return
    keys = Keys.of(architecture, metadata)
    if not len(keys.need("target_layers")):
        yield Fault(f"{name}.target_layers", "is empty; numbers of layers are expected")
        return
    width, layers = int(keys.need("embedding_length")), int(keys.need("block_count"))
    # DeepSeek V4's is in two parts
    output = "attn_output" if keys.get("hyper_connection.count") is None else "attn_output_b"
    wanted = [f"blk.{i}.{role}.weight" for i in range(layers) for role in ("attn_norm", output, "ffn_norm")]
    for absent in sorted({"fc.weight", "enc.output_norm.weight", "output_norm.weight", *wanted} - set(tensors)):
        yield Fault(absent, "is missing")
    for tensor in (tensors[each] for each in ("fc.weight", "enc.output_norm.weight") if each in tensors):
        if tensor.shape[0] != width:
            yield Fault(tensor.name, f"has shape {list(tensor.shape)}; the draft is {width} wide")
    if "d2t" in tensors and (problem := _wrong_ids(tensors["d2t"], metadata)):
        yield Fault("d2t", problem)
    if keys.get("hyper_connection.count") is not None:
        yield from _layers_of_deepseek4(name, metadata, tensors)
    else:
        yield from _block_layers(architecture, metadata, tensors)
        yield from _selecting(keys, width, layers, metadata, tensors)


def as_deepseek4(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft model's keys as those of the model whose layers it has."""
    own = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    others = {key: value for key, value in metadata.items() if not key.startswith((f"{name}.", "general."))}
    return {**others, "general.architecture": DEEPSEEK4.name, **{f"{DEEPSEEK4.name}.{key}": own[key] for key in own}}


def _layers_of_deepseek4(name: str, metadata: Mapping[str, Any], tensors: Tensors) -> Iterator[Fault]:
    """Validate the layers of DeepSeek V4's type, which may lack only the embedding."""
    whole = as_deepseek4(name, metadata)
    layers = {each: tensor for each, tensor in tensors.items() if each.startswith(("blk.", "output_", "token_embd"))}
    key = f"{name}.attention.compress_ratios"
    if np.any(metadata.get(key, 0)):
        yield Fault(key, "is not 0; the layers of such a draft model only read tokens")
    for fault in faults(DEEPSEEK4, whole, layers):
        if fault.where != "token_embd.weight" or fault.where in tensors:
            yield replace(fault, where=fault.where.replace(f"{DEEPSEEK4.name}.", f"{name}."))


def _selecting(keys: Keys, width: int, layers: int, metadata: Mapping[str, Any], tensors: Tensors) -> Iterator[Fault]:
    """Validate drafts with a selector and convolutions (DFlash 2): all of it is there, or nothing."""
    around = [f"blk.{i}.{part}_conv" for i in range(layers) for part in ("attn", "ffn")]
    if not any(name.startswith(("selector_", *around)) for name in tensors):
        return
    sizes = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    numbers = {key: keys.stored(key) for key in sizes}
    if absent := [key for key, value in numbers.items() if value is None]:
        yield Fault(f"{keys.architecture}.{absent[0]}", "is missing; a draft with a selector needs it")
        return
    kernel, group, rank = (int(numbers[key]) for key in ("conv_kernel_size", "conv_group_size", "selector_rank"))
    if width % group:
        yield Fault(f"{keys.architecture}.conv_group_size", f"is {group}, no part of {width} channels")
        return
    table = tensors.get("selector_predecessor.weight")
    words = len(metadata.get("tokenizer.ggml.tokens", ())) or (table.shape[0] if table is not None else 0)
    shapes: dict[str, tuple[int, ...]] = {
        "selector_hidden.weight": (rank, width),
        **dict.fromkeys(("selector_predecessor.weight", "selector_successor.weight"), (words, rank)),
    }
    for each in around:
        shapes |= {f"{each}_base": (2, kernel, width), f"{each}_proj.weight": (2 * kernel * (width // group), width)}
    yield from _of_shapes(shapes, tensors)


def _block_layers(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> Iterator[Fault]:
    """Validate the layers of Qwen3's and Gemma 4's type."""
    try:
        numbers = read_hparams(architecture, metadata)
    except ModelError as error:
        yield Fault("model", str(error))
        return
    yield from _wrong_factors(tensors, numbers)
    width, inner = numbers.width, metadata.get(f"{architecture.name}.feed_forward_length", 0)
    for i, own in enumerate(numbers.layers):
        if own.rope_width % 2 or own.rope_width > own.key_width or own.heads % max(1, own.kv_heads):
            yield Fault(f"blk.{i}", f"has {own.heads} heads of {own.key_width}, {own.kv_heads} of keys: no layer has")
            return
        neurons = int(inner[i] if hasattr(inner, "__len__") else inner)
        keys, values = own.kv_heads * own.key_width, own.kv_heads * own.value_width
        shapes = {
            "attn_q.weight": (own.heads * own.key_width, width),
            "attn_k.weight": (keys, width),
            "attn_output.weight": (width, own.heads * own.value_width),
            "attn_q_norm.weight": (own.key_width,),
            "attn_k_norm.weight": (own.key_width,),
            "ffn_gate.weight": (neurons, width),
            "ffn_up.weight": (neurons, width),
            "ffn_down.weight": (width, neurons),
            **dict.fromkeys(("attn_norm.weight", "ffn_norm.weight"), (width,)),
        }
        optional = {
            "attn_v.weight": (values, width),
            "attn_sinks.weight": (own.heads,),
            "layer_output_scale.weight": (1,),
            **dict.fromkeys(("post_attention_norm.weight", "post_ffw_norm.weight"), (width,)),
        }
        for role, shape in {**shapes, **optional}.items():
            tensor = tensors.get(f"blk.{i}.{role}")
            if tensor is None and role in shapes:
                yield Fault(f"blk.{i}.{role}", "is missing")
            elif tensor is not None and tensor.shape != shape:
                yield Fault(f"blk.{i}.{role}", f"has shape {list(tensor.shape)}; {list(shape)} is expected")
        if "blk.0.attn_v.weight" not in tensors and own.key_width != own.value_width:
            yield Fault(f"blk.{i}", "has keys that are values as well, of two widths")


def _numbers(keys: Keys) -> Iterator[Fault]:
    """Validate keys that are valid on their own, but not for such a draft."""
    if keys.need("block_count") != 1:
        yield Fault(f"{keys.architecture}.block_count", f"is {keys.need('block_count')}; such a draft has one layer")
    for key in ("feed_forward_length", "attention.head_count", "attention.head_count_kv"):
        value = keys.stored(key)
        if value is not None and (not isinstance(value, (int, np.integer)) or value < 1):
            yield Fault(f"{keys.architecture}.{key}", f"is {value}; one number, 1 or more, is expected")
            return
    heads, groups = keys.need("attention.head_count"), keys.get("attention.head_count_kv")
    if heads % groups:
        yield Fault(f"{keys.architecture}.attention.head_count", f"is {heads}, no multiple of {groups} of keys")
    layers = keys.need("target_layers")
    if not len(layers) or min(layers) < 0:
        yield Fault(f"{keys.architecture}.target_layers", f"is {list(layers)}; numbers of layers are expected")


def _eagle3(
    architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors
) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """Return shapes of all tensors that EAGLE-3 may have, and the names of the required ones."""
    keys, numbers = Keys.of(architecture, metadata), read_hparams(architecture, metadata)
    own, width, inner = numbers.layers[0], numbers.width, int(keys.need("feed_forward_length"))
    states = len(keys.need("target_layers")) * int(keys.need("target_hidden_size"))
    words = int(keys.get("vocab_size") or 0) or len(metadata.get("tokenizer.ggml.tokens", ()))
    queries, mixed = own.heads * own.key_width, own.heads * own.value_width
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, states),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_norm_2.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.attn_q.weight": (queries, 2 * width),
        "blk.0.attn_k.weight": (own.kv_heads * own.key_width, 2 * width),
        "blk.0.attn_v.weight": (own.kv_heads * own.value_width, 2 * width),
        "blk.0.attn_output.weight": (width, mixed),
        "blk.0.ffn_gate.weight": (inner, width),
        "blk.0.ffn_up.weight": (inner, width),
        "blk.0.ffn_down.weight": (width, inner),
    }
    needed = set(shapes)
    drafted = tensors["d2t"].shape[0] if "d2t" in tensors else words
    shapes |= {
        "enc.output_norm.weight": (states,),
        "token_embd.weight": (words, width),
        "output.weight": (drafted, width),
    }
    needed |= {"enc.output_norm.weight"} if keys.get("norm_before_fc") else set()
    needed |= {"output.weight"} if drafted != words else set()
    return shapes, needed


def _wrong_factors(tensors: Tensors, hparams: HParams) -> Iterator[Fault]:
    """Return tensors with too few rotary divisors for their layers."""
    pairs = max((own.rope_width // 2 for own in hparams.layers if own.rope_scaled), default=0)
    tensor = tensors.get("rope_freqs.weight")
    if tensor is not None and (len(tensor.shape) != 1 or tensor.shape[0] < pairs):
        yield Fault("rope_freqs.weight", f"has shape {list(tensor.shape)}; {pairs} pairs rotate")


def _wrong_ids(tensor: Tensor, metadata: Mapping[str, Any]) -> str:
    """Return what is wrong with the list of the target's tokens that it drafts."""
    words = len(metadata.get("tokenizer.ggml.tokens", ()))
    if tensor.format.name != "I64" or len(tensor.shape) != 1:
        return f"is {tensor.format.name} of shape {list(tensor.shape)}; a list of I64 is expected"
    ids = tensor.elements().reshape(-1)
    if words and len(ids) and (ids.min() < 0 or ids.max() >= words):
        return f"names token {ids.max() if ids.min() >= 0 else ids.min()}; there are {words}"
    return "names a token twice" if len(np.unique(ids)) != len(ids) else ""


def _of_shapes(shapes: Mapping[str, tuple[int, ...]], tensors: Tensors) -> Iterator[Fault]:
    """Return tensors that are missing, or have other shapes than these."""
    for each, shape in shapes.items():
        if each not in tensors:
            yield Fault(each, "is missing")
        elif tensors[each].shape != shape:
            yield Fault(each, f"has shape {list(tensors[each].shape)}; {list(shape)} is expected")
