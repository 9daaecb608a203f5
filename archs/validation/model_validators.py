"""Validate that a model's keys and tensors belong together, for conversion, `validate`, export and the runtime.

Keys are checked before anything is counted by them, layers before any is computed with, so that no number of a file is
used beyond what its tensors confirm.
"""

import re
from collections.abc import Iterator, Mapping, Sized
from itertools import chain, islice
from typing import Any

from quants.errors import ModelError

from .. import tensor_shapes
from ..hparams.file_keys import Keys
from ..hparams.model_hparams import HParams, read_hparams
from ..layered import Fault, LayeredModel, by_layer, is_zero, missing, weighs
from ..registry import architectures
from ..schema import ELSEWHERE, MODEL
from ..spec import Architecture, TensorMap, Tensors
from ..tensor_shapes import has
from .layer_validators import validate_layers
from .tensor_validators import SIZES, sizes_of, validate_tensors

SUFFIX = re.compile(r"\.(weight|bias|scale)$")
TOKENS = "tokenizer.ggml.tokens"
MAX_FAULTS = 1000  # faults; a file of a hundred thousand tensors may have as many
OF_ONE_EXPERT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.\d+\.weight")
POSITIVE = {  # by the type of rotary scaling
    "linear": ("rope.scaling.factor",),
    "yarn": ("rope.scaling.factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
}
# Every layer has one of each group, if all families of the name write any of them.
NEEDED = (
    "attn_norm",
    "attn_q attn_qkv",
    "attn_k attn_qkv",
    "attn_v attn_qkv",
    "attn_output",
    "ffn_up ffn_up_exps ffn_gate_up_exps",
    "ffn_down ffn_down_exps ffn_down_t",
)


def check_model(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> None:
    """Raise ModelError naming the first key or tensor that does not fit the others."""
    if problems := faults(architecture, metadata, tensors):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ModelError(f"{problems[0]}{more}", hint="`gguftools validate` lists all that is wrong with the file")


def check_shapes(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> None:
    """Check a checkpoint's shapes. Raises ModelError naming its tensor, or the key's value from config.json."""
    for fault in faults(architecture, metadata, tensors):
        origin = tensors[fault.where].origin if fault.where in tensors else ""
        hint = "config.json and weights belong to different models, or a shard is damaged"
        raise ModelError(f"{origin} {fault.problem} ({fault.where})" if origin else str(fault), hint=hint)


def faults(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> list[Fault]:
    """Return contradictions, at most the first MAX_FAULTS. Later steps need earlier ones to have found nothing."""
    model = LayeredModel(architecture, Keys.of(architecture, metadata), by_layer(tensors))
    if problems := [*_separate_experts(tensors), *validate_keys(architecture, metadata, tensors)]:
        return problems
    try:
        numbers = read_hparams(architecture, metadata, tensors)
    except ModelError as error:
        return [Fault("model", str(error))]
    steps = (_model_faults(model, numbers), _outside_faults(model, numbers), _alike_faults(model))
    return list(dict.fromkeys(islice(chain(*steps, validate_layers(model, numbers)), MAX_FAULTS)))


def validate_keys(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> list[Fault]:
    """Return keys with a type or value that programs don't read, and counted layers that are missing."""
    model = LayeredModel(architecture, Keys.of(architecture, metadata), by_layer(tensors))
    for step in (_key_faults, _count_faults):
        if problems := list(islice(dict.fromkeys(step(model)), MAX_FAULTS)):
            return problems
    return []


def _separate_experts(tensors: Tensors) -> Iterator[Fault]:
    """Yield a tensor for each expert of Mixtral's files until April 2024; programs read stacked ones."""
    if name := next(filter(OF_ONE_EXPERT.fullmatch, tensors), None):
        stacked = re.sub(r"\.\d+\.weight$", "_exps.weight", name)
        problem = f"is of one expert, as in files of before April 2024; {stacked} is expected: convert the model again"
        yield Fault(name, problem)


# Keys


def _of_streams(model: LayeredModel) -> bool:
    """Return whether there are several streams of hidden states, by keys or tensors."""
    mixers = any("hc_attn_fn.weight" in roles for roles in model.grouped.values())
    return mixers or model.keys.get("hyper_connection.count") is not None


def _key_faults(model: LayeredModel) -> Iterator[Fault]:
    """Validate types and values, each key on its own."""
    start = f"{model.keys.architecture}."
    layers, mtp_layers = model.keys.get("block_count"), model.keys.get("nextn_predict_layers")
    counted = isinstance(layers, int) and isinstance(mtp_layers, int)
    attends = any(role.startswith("attn_q") for roles in model.grouped.values() for role in roles)
    for name, data in model.keys.metadata.items():
        rule = MODEL.get(name.removeprefix(start)) if name.startswith(start) else ELSEWHERE.get(name)
        if rule is None or data is None:
            continue
        if name == f"{start}attention.head_count" and not attends and is_zero(data):
            continue  # models without attention have 0
        listed = not isinstance(data, str) and hasattr(data, "__len__")
        if rule.per_layer and listed and counted and not rule.counts(len(data), layers, mtp_layers):
            yield Fault(name, f"has {len(data)} items; the model has {layers} layers")
        elif wrong := rule.wrong(data):
            yield Fault(name, wrong)
    for key in ("block_count", "embedding_length"):
        if model.keys.stored(key) is None:
            yield model.fault(key, "is missing; its architecture needs it")
    mixers = any("hc_" in role for roles in model.grouped.values() for role in roles)
    if model.keys.get("hyper_connection.count") is not None and not mixers:
        yield model.fault("hyper_connection.count", "is set, but no tensor mixes streams")
    if model.architecture.block.logit_scale == "divide" and is_zero(model.keys.get("logit_scale")):
        yield model.fault("logit_scale", "is 0; logits are divided by it")


def _count_faults(model: LayeredModel) -> Iterator[Fault]:
    """Validate layer counts: counted layers are there, and no others."""
    count, mtp_layers = model.keys.need("block_count"), model.keys.get("nextn_predict_layers")
    if mtp_layers >= count:
        yield model.fault("nextn_predict_layers", f"is {mtp_layers}, which leaves none of {count} layers")
        return
    if model.keys.get("decision.type") == "laya" and (head := model.keys.need("decision.block_count")) >= count:
        yield model.fault("decision.block_count", f"is {head}, which leaves none of {count} layers")
        return
    if "hrm.z_l_init" in model.outside:
        needed = map(model.keys.need, ("hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"))
        stack, high, low = map(int, needed)
        if count != stack * high * (low + 1):
            yield model.fault("block_count", f"is {count}; {stack * high * (low + 1)} layers run")
            return
    for prefix, key, count in model.layer_counts():
        there = {int(name[len(prefix) : -1]) for name in model.grouped if name.startswith(prefix)}
        first = next(i for i in range(len(there) + 1) if i not in there or f"{prefix}{i}." not in model.grouped)
        stated = count if model.keys.stored(key) is None else model.keys.stored(key)
        if first < count:
            yield Fault(f"{prefix}{first}", f"has no tensors; '{model.keys.architecture}.{key}' says {stated} layers")
        beyond = min((number for number in there if number >= max(stated, count)), default=None)
        if beyond is not None:
            yield Fault(f"{prefix}{beyond}", f"is past the {stated} layers of '{model.keys.architecture}.{key}'")


# The model as a whole


def _model_faults(model: LayeredModel, hparams: HParams) -> Iterator[Fault]:
    """Validate hyperparameters that fit no computation."""
    keys, rotating = model.keys, [own for own in hparams.layers if own.rotates]
    rope_type = "dynamic" if keys.get("rope.scaling.dynamic_factor") else keys.get("rope.scaling.type")
    context = keys.get("rope.scaling.original_context_length")
    if rotating and rope_type in ("yarn", "dynamic") and context < 1:
        yield model.fault("rope.scaling.original_context_length", f"is {context}; 1 or more is expected")
    for key in POSITIVE.get(rope_type, ()):
        if (value := keys.get(key)) is not None and value <= 0:
            yield model.fault(key, f"is {value}; more than 0 is expected")
    if any(own.rope_base == 1 for own in rotating):
        yield model.fault("rope.freq_base", "is 1, with which no two pairs turn apart")
    factors = [f"rope_factors_{each}.weight" for each in ("long", "short")]
    if rope_type == "longrope" or any(name in model.outside for name in factors):
        yield from (Fault(name, "is missing; longrope needs it") for name in factors if name not in model.outside)
    others = model.encoder_decoder or any(has(roles, "ffn_gate_inp inp_gate") for roles in model.grouped.values())
    if hparams.activation == "xielu" and others:
        yield model.fault("hidden_activation", "is 'xielu', which only dense nets have")
    if keys.get("attention.shared_kv_layers") and "gates" in model.architecture.block.qkv_steps:
        yield model.fault("attention.shared_kv_layers", "is not 0, but queries have gates")
    tokens, table = keys.metadata.get(TOKENS), model.outside.get("token_embd.weight")
    if table is not None and isinstance(tokens, Sized) and len(tokens) != table.rows:
        yield Fault(TOKENS, f"has {len(tokens)} items, but token_embd.weight has {table.rows} rows")


def _outside_faults(model: LayeredModel, hparams: HParams) -> Iterator[Fault]:  # noqa: C901  # one check after another
    """Validate tensors outside of the layers: shapes, and those that the layers' tensors need."""
    roles, sizes = model.outside, sizes_of(model, hparams, 0)
    if model.architecture.block.convolutions:
        yield from validate_tensors(model, "", roles, tensor_shapes.AUDIO_OUTSIDE, sizes)
        stored = (model.keys.stored(SIZES[name]) for name in ("norm_groups", "channels"))
        groups, channels = (1 if each is None else int(each) for each in stored)
        if groups < 1 or channels % groups or model.keys.get("convnext.embedding_length") not in (channels, None):
            yield model.fault(SIZES["norm_groups"], f"is {groups}; it parts {channels} channels, which both nets have")
        return
    if "token_embd_proj.weight" not in roles:
        sizes["embedded"] = hparams.width
    if "output_proj.weight" not in roles:
        sizes["projected"] = hparams.width
    elif "output.weight" not in roles and (table := roles.get("token_embd.weight")) is not None:
        sizes["projected"] = table.width
    last = model.architecture.block.last_tokens
    own = {role: tensor for role, tensor in roles.items() if role != "token_types.weight"}  # Clef's belong to its head
    of_tokens = own if model.keys.get("decision.type") == "clef" else roles
    yield from validate_tensors(
        model, "", of_tokens, tensor_shapes.OUTSIDE_OF_LAST_TOKENS if last else tensor_shapes.OUTSIDE, sizes
    )
    if sizes.get("written", 0) > (tokens := sizes.get("vocabulary", 0)):
        yield Fault("output.weight", f"has {sizes['written']} rows; there are {tokens} tokens")
    needed = []
    if sizes.get("embedded", hparams.width) != hparams.width and not weighs(roles, "output output_proj"):
        needed.append("output_proj.weight")  # back to the width of the embedding, which is also the output layer
    yield from _head_faults(model, hparams)
    others, table = model.keys.get("adapters.token_ids_substitute"), roles.get("token_embd.weight")
    if len(others) and table is not None and max(others) >= table.rows:
        yield model.fault("adapters.token_ids_substitute", f"has {max(others)}; there are {table.rows} tokens")
    if model.keys.get("hrm.layers_per_stack") is not None:
        needed.append("hrm.z_l_init")
    if model.encoder_decoder:
        needed += ["enc.output_norm.weight"] + ["dec.output_norm.weight"] * (not model.architecture.block.hidden_states)
    if any(has(layer, "inp_gate") for layer in model.grouped.values()):
        needed += ["per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight"]
    if has(roles, "altup_unembd_proj") or any(
        has(layer, tensor_shapes.COPIES.marks) for layer in model.grouped.values()
    ):
        needed.append("altup_proj.weight")
    if "output_hc_fn" in written_names(model.architecture) and _of_streams(model):
        needed += ["output_hc_fn.weight", "output_hc_base.weight", "output_hc_scale.weight"]
    if "altup_proj.weight" in roles:
        needed.append("altup_unembd_proj.weight")
        active, copies = model.keys.get("altup.active_idx"), 1 + roles["altup_proj.weight"].shape[0]
        if active >= copies:
            yield model.fault("altup.active_idx", f"is {active}; the file has {copies} copies")
    if any("hc_attn_down.weight" in layer for layer in model.grouped.values()):
        needed += [f"output_hc_{each}.weight" for each in ("norm", "down", "up")]
    if any("attn_res_score.weight" in layer for layer in model.grouped.values()):
        needed.append("output_res_score.weight")
    if any("ple_key.weight" in layer for layer in model.grouped.values()):
        yield from _table_faults(model)
    yield from (missing(name) for name in needed if name not in roles)
    pairs = max((own.rope_width // 2 for own in hparams.layers if own.rotates and own.rope_scaled), default=0)
    for name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"):
        tensor = roles.get(name)
        if tensor is not None and (len(tensor.shape) != 1 or tensor.shape[0] < pairs):
            yield Fault(name, f"has shape {list(tensor.shape)}; {pairs} pairs rotate")


def _head_faults(model: LayeredModel, hparams: HParams) -> Iterator[Fault]:
    """Yield faults of decision models' heads: Laya's layers after the others and its scorer, Kev's one matrix."""
    decision, roles = model.keys.get("decision.type"), model.outside
    if decision == "clef":
        yield from _joint_head_faults(model, hparams)
    if decision not in ("laya", "kev"):
        return
    wanted = ("token_types", "cls.norm", "cls", "cls.output") if decision == "laya" else ("cls.output",)
    yield from (missing(f"{name}.weight") for name in wanted if f"{name}.weight" not in roles)
    sizes = {"width": hparams.width, "scores": 1 if decision == "laya" else int(model.keys.get("embedding_length_out"))}
    yield from validate_tensors(model, "", roles, tensor_shapes.SCORER, sizes)
    if decision == "laya":
        if (types := roles.get("token_types.weight")) is not None and types.shape[0] != 3:
            yield Fault("token_types.weight", f"has {types.shape[0]} rows; there are 3 types of questions")
        first, sizes = len(hparams.layers), {"width": hparams.width}
        for i in range(first, int(model.keys.need("block_count"))):
            yield from validate_tensors(
                model, f"blk.{i}.", model.grouped.get(f"blk.{i}.", {}), tensor_shapes.SCORING, dict(sizes)
            )


def _joint_head_faults(model: LayeredModel, hparams: HParams) -> Iterator[Fault]:
    """Validate Clef's head: its layers, and the tensors around them."""
    sizes = {"width": hparams.width}
    yield from validate_tensors(model, "", model.outside, tensor_shapes.JOINT_HEAD, sizes)
    if "head" not in sizes:
        return
    if sizes["head"] % model.keys.get("decision.head_count"):
        yield model.fault("decision.head_count", f"does not divide the {sizes['head']} values of the head's states")
    routing, others = (int(model.keys.get(f"decision.{key}")) for key in ("routing_block_count", "block_count"))
    there = {int(name[8:-1]) for name in model.grouped if name.startswith("dec.blk.")}
    if there != set(range(len(there))) or len(there) != routing + others:
        yield model.fault("decision.block_count", f"means {routing + others} layers; the head has {len(there)}")
        return
    for i in sorted(there):
        part = tensor_shapes.ROUTING_LAYER if i < routing else tensor_shapes.JOINT_LAYER
        yield from validate_tensors(model, f"dec.blk.{i}.", model.grouped[f"dec.blk.{i}."], part, sizes)


def _table_faults(model: LayeredModel) -> Iterator[Fault]:
    """Yield faults of an n-gram table, and of the numbers by which its rows are found."""
    keys, table = model.keys, model.outside.get("per_layer_token_embd.weight")
    if table is None:
        yield missing("per_layer_token_embd.weight")
        return
    ngram_size = int(keys.get("ple.ngram_size") or 2)
    counts = {"layers": 1, "layer_multipliers": ngram_size}
    heads = (ngram_size - 1) * int(keys.get("ple.heads_per_ngram") or 1)
    counts |= dict.fromkeys(("head_offsets", "head_vocab_sizes"), heads)
    lists = {key: [int(each) for each in keys.need(f"ple.{key}")] for key in counts}
    for key, count in counts.items():
        if len(lists[key]) != count:
            yield model.fault(f"ple.{key}", f"has {len(lists[key])} items; {count} are expected")
    if keys.get("ple.eos_token_id") is None:
        yield model.fault("ple.eos_token_id", "is missing; its architecture needs it")
    for offset, size in zip(lists["head_offsets"], lists["head_vocab_sizes"], strict=False):
        if size < 1 or offset + size > table.shape[0]:
            yield model.fault("ple.head_vocab_sizes", f"means rows {offset} to {offset + size} of {table.shape[0]}")
    for number in lists["layers"]:
        roles = model.grouped.get(f"blk.{number}.", {})
        if "ple_key.weight" not in roles or "ssm_out.weight" not in roles:
            yield model.fault("ple.layers", f"has {number}, which is no layer with a delta net and a table")


def _alike_faults(model: LayeredModel) -> Iterator[Fault]:
    """Validate tensors that other layers have, or that every file of the name has."""
    family = [each for each in architectures() if each.name == model.architecture.name] or [model.architecture]
    if any(each.layers_vary for each in family):
        return
    block, written = model.architecture.block, [written_names(each) for each in family]
    for name in ("output_norm", block.output_norm):
        if all(name in names for names in written) and not {name, f"{name}.weight"} & set(model.outside):
            yield missing(f"{name}.weight")
    layers = {prefix: roles for prefix, roles in model.grouped.items() if prefix}
    union = set().union(*layers.values())
    for prefix, roles in layers.items():
        for absent in sorted(union - set(roles)):
            yield Fault(f"{prefix}{absent}", "is missing; other layers have it")
    for group in (*NEEDED, *([block.ffn_norm] if block.parallel is False else [])):
        named = {f"blk.{{i}}.{role}" for role in group.split()}
        if all(named & names for names in written) and not has(union, group):
            yield Fault(f"blk.*.{group.split()[0]}.weight", "is missing in every layer; its architecture needs it")


def written_names(architecture: Architecture) -> set[str]:
    """Return GGUF names, with {i}, that the architecture's conversion always writes, without suffix."""
    return {SUFFIX.sub("", name) for name in target_names(architecture) if isinstance(name, str)}


def target_names(architecture: Architecture) -> Iterator[Any]:
    for target in architecture.tensors.values():
        for each in target if isinstance(target, tuple) else (target,):
            yield each.name if isinstance(each, TensorMap) else each
