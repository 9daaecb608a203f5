"""The MTP (NextN) layers, in a model's file or in a separate one.

They are the last `nextn_predict_layers` of `block_count` layers, after the trunk. A separate file has all keys of the
model, these layers, and the tensors outside of layers that they use.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quants.errors import ModelError

from .layered import Fault
from .schema import MODEL
from .spec import Architecture, Tensors
from .validation.model_validators import faults, validate_keys

COUNT, BLOCKS = "nextn_predict_layers", "block_count"
HASHED = "hash_layer_count"  # leading layers that choose experts by token ids
DENSE = "leading_dense_block_count"
RECURRENT, PERIOD = "attention.recurrent_layers", "full_attention_interval"
LAYER = re.compile(r"blk\.([0-9]+)\.(.+)")
SHAPES = {"eh_proj": (1, 2), "enorm": (1,), "hnorm": (1,), "shared_head_norm": (1,)}  # in widths of the model
MEAN = {f"output_hc_{each}.weight": f"nextn.hc_head_{each}.weight" for each in ("norm", "down", "up")}  # of streams
MAX_LAYERS = 10_000


def trunk_of(metadata: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of trunk layers and of MTP layers after them; 0 where the keys mean none."""
    name = metadata.get("general.architecture")
    layers, mtp_layers = metadata.get(f"{name}.{BLOCKS}"), metadata.get(f"{name}.{COUNT}", 0)
    if not isinstance(layers, int) or not isinstance(mtp_layers, int) or not 0 < mtp_layers < layers:
        return layers if isinstance(layers, int) else 0, 0
    return layers - mtp_layers, mtp_layers


def for_each_layer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with items for the MTP layers appended to lists that have only the trunk's layers.

    Each item is the first layer's value, as in published code (vLLM's of EXAONE MoE). If a period selects the recurrent
    layers, MTP layers are not recurrent.
    """
    (trunk, mtp_layers), name = trunk_of(metadata), metadata.get("general.architecture")
    keys = dict(metadata.items())
    period = keys.get(f"{name}.{PERIOD}")
    if mtp_layers and isinstance(period, int) and period > 0 and trunk < MAX_LAYERS:
        recurrent = [(i + 1) % period != 0 for i in range(trunk)]
        keys.setdefault(f"{name}.{RECURRENT}", [*recurrent, *[False] * mtp_layers])
    for key, rule in MODEL.items() if mtp_layers else ():
        items = keys.get(f"{name}.{key}")
        if rule.per_layer and isinstance(items, Sequence | np.ndarray) and not isinstance(items, str):
            keys[f"{name}.{key}"] = [*items, *[items[0]] * mtp_layers] if len(items) == trunk else items
    return keys


def as_the_first(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return `for_each_layer` with the first MTP layer's items for all layers."""
    (trunk, mtp_layers), name = trunk_of(metadata), metadata.get("general.architecture")
    keys = for_each_layer(metadata)
    for key, rule in MODEL.items():
        items = keys.get(f"{name}.{key}")
        if rule.per_layer and isinstance(items, Sequence | np.ndarray) and not isinstance(items, str):
            keys[f"{name}.{key}"] = [items[trunk]] * (trunk + mtp_layers) if len(items) == trunk + mtp_layers else items
    return keys | {key: 0 for key in (f"{name}.{HASHED}", f"{name}.{DENSE}") if key in keys}


def as_it_reads(metadata: Mapping[str, Any], roles: Iterable[str]) -> dict[str, Any]:
    """Return the keys, without those of several streams if one stream goes through an MTP layer of such a model.

    roles: of the layer's tensors.
    """
    streams = f"{metadata.get('general.architecture')}.hyper_connection."
    several = any(role.startswith("hc_") for role in roles)
    return {key: metadata[key] for key in metadata if several or not key.startswith(streams)}


def has_only_mtp(metadata: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Return whether a file has MTP layers and none of the trunk. names: of its tensors."""
    trunk, mtp_layers = trunk_of(metadata)
    there = {int(match[1]) for match in map(LAYER.fullmatch, names) if match}
    return bool(mtp_layers and there) and min(there) >= trunk


def faults_beyond(
    architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors, every: bool = False
) -> Iterator[Fault]:
    """Return the faults of the MTP layers, which are made like those of the trunk, with a few more tensors.

    every: also faults of the file as a model of all these layers, such as lists without items for them.
    """
    name = architecture.name
    (trunk, mtp_layers), width = trunk_of(metadata), metadata.get(f"{name}.embedding_length")
    if not mtp_layers:
        return
    beyond = {each: tensor for each, tensor in tensors.items() if _layer(each) >= trunk}
    if not beyond:
        yield Fault(f"blk.{trunk}", f"has no tensors; '{name}.{COUNT}' says {mtp_layers} MTP layers after the trunk")
        return
    mtp_only = has_only_mtp(metadata, tensors)
    if mtp_only and trunk > MAX_LAYERS:
        yield Fault(f"{name}.{BLOCKS}", f"is {trunk + mtp_layers}, more than any model has")
        return
    whole = {**(as_the_first if mtp_only else for_each_layer)(metadata), f"{name}.{COUNT}": 0}
    if not isinstance(width, int):
        yield Fault(f"{name}.embedding_length", f"is {width!r}; a whole number is expected")
        return
    roles = _roles(beyond, trunk)
    if mtp_only:
        metadata, whole = (as_it_reads(each, roles) for each in (metadata, whole))
    own_mean = "hc_attn_down.weight" in roles  # it reads several streams
    standing = {**(_stand_ins(beyond, trunk) if mtp_only else {}), **tensors, **own_mixer(roles)}
    if mtp_only and (problems := validate_keys(architecture, metadata, standing)):
        yield from problems
        return
    problems = faults(architecture, whole, standing)
    for fault in _of_the_first(problems, trunk) if mtp_only else problems:
        if own_mean and (own := MEAN.get(fault.where)):  # a stand-in for the trunk's
            yield replace(fault, where=f"blk.{trunk}.{own}")
            continue
        at = re.match(r"blk\.([0-9]+)", fault.where)
        ends_before = "items; the model has" in fault.problem  # lists without items for MTP layers are usual
        if every or (at is None and mtp_only and not ends_before) or (at and int(at[1]) >= trunk):
            yield fault
    needed = {f"nextn.{role}.weight" for role in ("eh_proj", "enorm", "hnorm") if mtp_only}
    needed |= {*MEAN.values()} if own_mean else set()
    yield from (Fault(f"blk.{trunk}.{each}", "is missing; such a layer needs it") for each in sorted(needed - {*roles}))
    streams = metadata.get(f"{name}.hyper_connection.count", 1) if own_mean else 1
    for each, tensor in beyond.items():
        role = re.fullmatch(r"blk\.([0-9]+)\.nextn\.(\w+)\.weight", each)
        wanted = SHAPES.get(role[2]) if role else None
        wanted = (streams,) if role and role[2] == "hnorm" else wanted
        if wanted and tensor.shape != (shape := tuple(times * width for times in wanted)):
            yield Fault(each, f"has shape {list(tensor.shape)}; {list(shape)} is expected")


def check_beyond(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> None:
    """Raise ModelError naming the first of these faults."""
    if fault := next(faults_beyond(architecture, metadata, tensors, every=True), None):
        trunk, _ = trunk_of(metadata)
        raise ModelError(f"the MTP layer ('blk.{trunk}') can't run: {fault}")


def _stand_ins(beyond: Tensors, trunk: int) -> Tensors:
    """Return the layers of a missing trunk: copies of the first MTP layer."""
    roles = _roles(beyond, trunk)
    return {f"blk.{i}.{role}": tensor for i in range(trunk) for role, tensor in roles.items()}


def _of_the_first(problems: Iterable[Fault], trunk: int) -> list[Fault]:
    """Return faults of the copies that replace a missing trunk as those of the MTP layer that they copy."""
    named = (replace(each, where=re.sub(r"^blk\.[0-9]+", f"blk.{trunk}", each.where)) for each in problems)
    return list(dict.fromkeys(named))


def _roles(tensors: Tensors, layer: int) -> Tensors:
    """Return a layer's tensors by role."""
    matches = {name: match for name in tensors if (match := LAYER.fullmatch(name)) and int(match[1]) == layer}
    return {match[2]: tensors[name] for name, match in matches.items()}


def own_mixer(layer: Tensors) -> Tensors:
    """Return the mixer of several streams after an MTP layer, with the names of the trunk's.

    layer: its tensors by role.
    """
    return {name: layer[role] for name, role in MEAN.items() if role in layer}


def _layer(tensor: str) -> int:
    match = LAYER.fullmatch(tensor)
    return int(match[1]) if match else -1
