"""Validate layers: relations between their parts and hyperparameters."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from quants import Tensor

from .. import tensor_shapes
from ..hparams.model_hparams import HParams, LayerHParams
from ..layer_types import LayerType, type_of_layer
from ..layered import Fault, LayeredModel, missing, weighs
from ..tensor_shapes import Part, has
from .tensor_validators import (
    SIZES,
    Sizes,
    contradictions,
    net_width,
    parts_of,
    sizes_of,
    unread_tensors,
    validate_tensors,
)

ENTRIES = ("kv", "gate", "ape", "norm")  # tensors of the compressed entries for blocks of tokens


def validate_layers(model: LayeredModel, hparams: HParams) -> Iterator[Fault]:
    """Validate every layer that runs. Layers with the same hyperparameters and shapes as an earlier one need no
    check.
    """
    sound: set[Any] = set()
    for prefix, _, count in model.layer_counts():
        for index in range(count):
            start = f"{prefix}{index}."
            roles, own = model.grouped[start], hparams.layers[min(index, len(hparams.layers) - 1)]
            shapes = frozenset((role, tensor.shape, tensor.format.name) for role, tensor in roles.items())
            decodes = not model.encoder_decoder and not model.architecture.block.convolutions
            layer_type = _layer_type(model, hparams, index) if decodes else None
            like = (prefix, own, net_width(model, index), shapes, layer_type)
            if like in sound:
                continue
            sizes, declared = sizes_of(model, hparams, index), list(parts_of(model, start, own, layer_type))
            made_of = [part for name, part in declared if not name or part.shown_by(roles)]
            of_parts = [fault for part in made_of for fault in validate_tensors(model, start, roles, part, sizes)]
            problems: list[Fault] = []
            if model.encoder_decoder:
                problems = [*_distance_faults(model, start, own)]
            elif layer_type:
                problems = [*_attention_faults(model, hparams, start, made_of), *_state_faults(model, made_of, sizes)]
                problems += _expert_faults(model, hparams, start, made_of, sizes)
                problems += [*_indexer_faults(model, hparams, start), *_entry_faults(model, hparams, start, made_of)]
                problems += [*_stream_faults(model, start, made_of)]
            for role, tensor in roles.items():  # factors of a matrix; parts check those of stacked matrices and routers
                if role.endswith(".scale") and tensor.size != 1 and not role.endswith(("_exps.scale", "_inp.scale")):
                    problems.append(Fault(start + role, f"has shape {list(tensor.shape)}; one number is expected"))
            problems += of_parts  # relations of hyperparameters go first: shapes follow from them
            problems += contradictions(start, roles, declared)
            problems += unread_tensors(start, roles, layer_type) if layer_type else []
            if len(declared) == 1 and layer_type and not problems:
                problems.append(Fault(start[:-1], "is a layer without attention, a feed-forward net or any other"))
            yield from problems
            if not problems:
                sound.add(like)


def _layer_type(model: LayeredModel, hparams: HParams, index: int) -> LayerType:
    roles = model.grouped.get(f"blk.{index}.", {})
    return type_of_layer(model.architecture.block, model.keys, index, roles, hparams.parallel)


def _attention_faults(model: LayeredModel, hparams: HParams, start: str, made_of: list[Part]) -> Iterator[Fault]:
    roles, keys, own = model.grouped[start], model.keys, hparams.layers[int(start.split(".")[-2])]
    latent = tensor_shapes.LATENT in made_of
    if not latent and tensor_shapes.ATTENTION not in made_of and tensor_shapes.BORROWING not in made_of:
        return
    max_width = int(keys.get("attention.key_length_mla") or 0) - 1 if latent else own.key_width
    rotation, where, shared = "rope.dimension_count", start[:-1], "attention.shared_kv_layers"
    if own.heads < 1:
        yield model.fault("attention.head_count", f"is {own.heads} for {where}, which attends")
        return
    if (own.rotates or (latent and own.rope_width)) and not (
        0 < own.rope_width <= max_width and own.rope_width % 2 == 0
    ):
        known = f"an even number of a head's {max_width} ('attention.key_length') rotates"
        yield model.fault(rotation, f"means {own.rope_width} values; {known}")
    if own.rotates and own.rope_width == 2 and keys.get("rope.scaling.dynamic_factor"):
        yield model.fault(rotation, "is 2; dynamic scaling needs more")
    if latent:
        return
    if own.kv_heads < 1 or own.heads % own.kv_heads:
        yield model.fault("attention.head_count_kv", f"is {own.kv_heads}: {own.heads} heads cannot share that many")
    if own.kv_source_layer is not None:
        at = own.kv_source_layer
        source = hparams.layers[at]
        if (own.key_width, own.value_width) != (source.key_width, source.value_width):
            yield model.fault(shared, f"lets {where} look at keys of another width")
        if source.kv_heads < 1 or own.heads % source.kv_heads:
            yield model.fault("attention.head_count_kv", f"is {source.kv_heads}: {own.heads} heads of {where}")
        if _layer_type(model, hparams, at).mixer != "attention":
            yield model.fault(shared, f"lets {where} look at blk.{own.kv_source_layer}, without keys")
        return
    if not weighs(roles, "attn_v attn_qkv") and own.key_width != own.value_width:
        yield missing(f"{start}attn_v.weight")
    if "gates" in model.architecture.block.qkv_steps and has(roles, "attn_qkv"):
        yield Fault(f"{start}attn_qkv.weight", "is there, but queries have gates")


def _indexer_faults(model: LayeredModel, hparams: HParams, start: str) -> Iterator[Fault]:
    """Validate the heads of the indexer, which rotate like the others."""
    roles, own = model.grouped[start], hparams.layers[int(start.split(".")[-2])]
    width = int(model.keys.get("attention.indexer.key_length"))
    if any(role.startswith("indexer.") for role in roles) and width and own.rotates and own.rope_width > width:
        yield model.fault("rope.dimension_count", f"means {own.rope_width} values; an indexer's head has {width}")


def _entry_faults(model: LayeredModel, hparams: HParams, start: str, made_of: list[Part]) -> Iterator[Fault]:
    """Validate attention to a window and to compressed entries: keys that divide each other, tensors of layers with
    entries.
    """
    if tensor_shapes.COMPRESSED not in made_of:
        return
    roles, index = model.grouped[start], int(start.split(".")[-2])
    own, ratio = hparams.layers[index], int(model.keys.of_layer("attention.compress_ratios", index))
    indexes, narrowest = has(roles, "indexer.attn_q_b"), own.key_width
    if ratio and indexes:
        narrowest = min(narrowest, int(model.keys.get("attention.indexer.key_length")))
    if not (0 < own.rope_width <= narrowest and own.rope_width % 2 == 0):
        yield model.fault("rope.dimension_count", f"means {own.rope_width} values; an even number of {narrowest}")
    groups = int(model.keys.get("attention.output_group_count"))
    if own.heads < 1 or own.heads % groups:
        yield model.fault("attention.output_group_count", f"is {groups}; there are {own.heads} heads")
    needed = []
    if ratio:
        needed += [f"attn_compressor_{each}.weight" for each in ENTRIES]
    if ratio and indexes:
        needed += ["indexer.proj.weight", *(f"indexer_compressor_{each}.weight" for each in ENTRIES)]
        for key in ("head_count", "key_length", "top_k"):
            if not model.keys.get(f"attention.indexer.{key}"):
                yield model.fault(f"attention.indexer.{key}", f"is missing or 0; {start}* needs it")
    yield from (missing(f"{start}{name}") for name in needed if name not in roles)
    for name in ("attn_compressor", "indexer_compressor") if ratio else ():
        kv, gate, ape = (roles.get(f"{name}_{each}.weight") for each in ("kv", "gate", "ape"))
        key = f"{start}{name}_ape.weight"
        if ape is not None and ape.shape[0] != ratio:
            yield Fault(key, f"has {ape.shape[0]} rows; entries stand for {ratio} tokens")
        if kv and gate and ape and not kv.shape[0] == gate.shape[0] == ape.shape[-1]:
            yield Fault(key, f"has rows of {ape.shape[-1]}; values are {kv.shape[0]} wide, gates {gate.shape[0]}")


def _stream_faults(model: LayeredModel, start: str, made_of: list[Part]) -> Iterator[Fault]:
    """Validate streams of hidden states: factors of a part that belong together, and the keys that they need."""
    if tensor_shapes.CONNECTIONS not in made_of:
        return
    roles, count = model.grouped[start], int(model.keys.get("hyper_connection.count") or 0)
    for net in ("attn", "ffn"):
        there = [roles.get(f"hc_{net}_{each}.weight") for each in ("fn", "base", "scale")]
        sizes = [tensor.shape[0] for tensor in there if tensor is not None]
        if sizes not in ([2 * count, 2 * count, 2], [count * (2 + count), count * (2 + count), 3]):
            yield Fault(
                f"{start}hc_{net}_fn.weight",
                f"has {sizes[:1]} rows, base and scale {sizes[1:]}; there are {count} streams",
            )
        key = "sinkhorn_iterations" if sizes[-1:] == [3] else "magnitude"
        if model.keys.get(f"hyper_connection.{key}") is None:
            yield model.fault(f"hyper_connection.{key}", f"is missing; {start}* needs it")


def _state_faults(model: LayeredModel, made_of: list[Part], sizes: Sizes) -> Iterator[Fault]:
    if "wkv" in sizes and any(
        part in made_of for part in (tensor_shapes.WKV, tensor_shapes.WKV7, tensor_shapes.WKV7_WITHOUT_GATE)
    ):
        if sizes["width"] % (size := sizes["wkv"]):
            yield model.fault("wkv.head_size", f"is {size}, which does not divide {sizes['width']}")
        elif sizes["wkv_heads"] % (shared := max(1, np.max(model.keys.get("attention.head_count_kv"), initial=0))):
            yield model.fault("attention.head_count_kv", f"is {shared}; {sizes['wkv_heads']} heads cannot share that")
    if tensor_shapes.NARROW_HEADS in made_of and sizes["inner"] % sizes["steps"]:
        yield model.fault(SIZES["steps"], f"is {sizes['steps']}, which does not divide {sizes['inner']}")
    if tensor_shapes.HEADS not in made_of and tensor_shapes.DELTA not in made_of:
        return
    for name, whole in (("steps", "inner"), ("groups", "steps")):
        if model.keys.stored(SIZES[name]) == 0:
            yield model.fault(SIZES[name], "is 0; 1 or more is expected")
        elif sizes.get(whole, 0) % sizes.get(name, 1):
            yield model.fault(SIZES[name], f"is {sizes[name]}, which does not divide {sizes[whole]}")


def _expert_faults(
    model: LayeredModel, hparams: HParams, start: str, made_of: list[Part], sizes: Sizes
) -> Iterator[Fault]:
    if tensor_shapes.EXPERTS not in made_of or "experts" not in sizes:
        return
    if model.architecture.block.gated and not weighs(model.grouped[start], "ffn_gate_exps ffn_gate_up_exps"):
        yield missing(f"{start}ffn_gate_exps.weight")
    count, used = sizes["experts"], hparams.layers[int(start.split(".")[-2])].experts_used
    if (table := model.grouped[start].get("ffn_gate_tid2eid.weight")) is not None:
        yield from _choice_faults(model, start, table, used)
    groups, best = hparams.expert_groups, hparams.expert_groups_used
    if not 1 <= used <= count:
        yield model.fault("expert_used_count", f"is {used}: {used} experts cannot be used of {count}")
    if best == groups or groups < 2:
        return
    if count % groups:
        yield model.fault("expert_group_count", f"is {groups}, which does not divide {count} experts")
    elif not (1 <= best <= groups and used * groups <= best * count):
        yield model.fault("expert_group_used_count", f"is {best}: {used} experts cannot come from so many of {groups}")


def _choice_faults(model: LayeredModel, start: str, table: Tensor, used: int) -> Iterator[Fault]:
    """Validate the table from token ids to experts: the right number for each, all existing."""
    name, embedding = f"{start}ffn_gate_tid2eid.weight", model.outside.get("token_embd.weight")
    wanted = (embedding.shape[0] if embedding is not None else table.shape[0], used)
    if table.format.name not in ("I32", "I64") or table.shape != wanted:
        actual = f"is {table.format.name} {list(table.shape)}"
        yield Fault(name, f"{actual}; I32 {list(wanted)} is expected, experts for each token")


def _distance_faults(model: LayeredModel, start: str, own: LayerHParams) -> Iterator[Fault]:
    """Validate distance buckets: near distances have one each, those up to the farthest share the rest."""
    bias = model.grouped[start].get("attn_rel_b.weight")
    if own.heads < 1:
        yield model.fault("attention.head_count", f"is {own.heads} for {start[:-1]}, which attends")
    if start.endswith(".blk.0.") and bias is None:
        yield missing(f"{start}attn_rel_b.weight")
    if bias is not None:
        exact = bias.shape[0] // (4 if start.startswith("enc") else 2)
        if not 0 < exact < model.keys.get("attention.relative_max_distance"):
            yield Fault(f"{start}attn_rel_b.weight", f"has {bias.shape[0]} rows, which are no buckets for distances")
