"""Source tensors from those of a file: the inverse of every rule of an architecture."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from quants import Tensor, from_array
from quants.errors import ModelError

from ...spec import Architecture, Config, PerLayerScalars, TensorMap, Tensors, unchanged
from ...transforms import Invertible, as_float32, concatenated, reshape, take
from ..text import full_key, layer_count, maps_of

SUFFIX = re.compile(r"\.(weight|bias)$")
LAYER_NUMBER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
OUTSIDE = {"output", "output_norm_head", "cls", "cls.output"}  # GGUF names of tensors outside of the base model


def export_tensors(
    architecture: Architecture, config: Config, metadata: Mapping[str, Any], tensors: Tensors
) -> dict[str, Tensor]:
    """Return source tensors by Hugging Face name. Raises ModelError for a tensor without a rule, or a rule without
    inverse.
    """
    generated = {tensor.name for generate in architecture.generated for tensor in generate(config)}
    left = movable({name: tensor for name, tensor in tensors.items() if name not in generated})
    last = max((int(match[1]) for name in left if (match := LAYER_NUMBER.match(name))), default=-1)
    layers = range(max(layer_count(architecture, config), last + 1))
    legacy = names(tensors) if callable(names := architecture.legacy_names) else names
    source: dict[str, Tensor] = {}
    named = partial(source_name, architecture)
    for pattern, target in reversed(list(architecture.tensors.items())):
        if isinstance(target, PerLayerScalars):
            source |= _from_scalars(architecture, pattern, target, metadata)
        elif maps := maps_of(target):
            for layer in layers if "{i}" in pattern else (0,):
                of_layer = pattern.replace("{i}", str(layer))
                if not {pattern, of_layer} & {*legacy}:
                    source |= from_maps(of_layer, maps, (layer,), config, left, named)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ModelError(f"{architecture.hf_classes[0]} has no place for {next(iter(left))!r}{more}")
    return source


def without_inverse(architecture: Architecture) -> list[str]:
    """Return source names whose tensors cannot be restored, wherever a file has their results."""
    legacy = architecture.legacy_names
    lost: dict[str, str] = {}
    for pattern, target in architecture.tensors.items():
        if isinstance(target, PerLayerScalars) or (not callable(legacy) and pattern in legacy):
            continue
        for each in maps_of(target):
            name = each.name if isinstance(each.name, str) else pattern
            lost.pop(name, None)  # the later of two rules counts
            if each.transform is not unchanged and not isinstance(each.transform, Invertible):
                lost[name] = pattern
    return list(lost.values())


def movable(tensors: Tensors) -> dict[str, Tensor]:
    """Return block formats decoded to float32, so that values can be moved one by one."""
    return {name: as_float32(each) if each.format.is_quantized else each for name, each in tensors.items()}


def numbered(name: str, numbers: Sequence[int]) -> str:
    """Return a name with numbers in the places {i} and {j}."""
    for place, number in zip(("{i}", "{j}"), numbers, strict=False):
        name = name.replace(place, str(number))
    return name


def from_maps(
    pattern: str,
    maps: tuple[TensorMap, ...],
    numbers: Sequence[int],
    config: Config,
    left: dict[str, Tensor],
    named: Callable[[str, str], str],
) -> dict[str, Tensor]:
    """Return the source of one rule, or of its weight and its bias; used tensors are removed from `left`.

    named: what checkpoints call a source name, by that and the GGUF name.
    """
    targets = [each.name if isinstance(each.name, str) else each.name(config) for each in maps]
    targets = [numbered(target, numbers) for target in targets]
    source: dict[str, Tensor] = {}
    for suffix in ("",) if SUFFIX.search(targets[0]) else ("", ".weight", ".bias"):
        names = [target if SUFFIX.search(target) else target + suffix for target in targets]
        if not all(name in left for name in names):
            continue
        inverses = []
        for each, name in zip(maps, names, strict=True):
            inverse = Invertible(unchanged) if each.transform is unchanged else each.transform
            if not isinstance(inverse, Invertible):
                raise ModelError(f"what was done to {name!r} cannot be undone")
            inverses.append(inverse)
        parts = [inverse.invert(left.pop(name), config) for inverse, name in zip(inverses, names, strict=True)]
        whole = parts[0] if len(parts) == 1 and inverses[0].rows is None else _joined(inverses, parts, config)
        name = named(pattern + suffix, names[0])
        source |= _unstacked(name, whole) if maps[0].stack else {name: whole.renamed(name)}
    return source


def _joined(inverses: list[Invertible], parts: list[Tensor], config: Config) -> Tensor:
    """Return one source tensor from the shares of its rows."""
    parts = parts if len({part.format.name for part in parts}) == 1 else [as_float32(part) for part in parts]
    flat = [reshape(part, (part.rows, part.width)) if len(part.shape) > 1 else part for part in parts]
    total = sum(part.shape[0] for part in flat)
    index, shape = [], parts[0].shape
    for inverse, part in zip(inverses, parts, strict=True):
        if inverse.rows is None:
            raise ModelError(f"what was done to {part.name!r} cannot be undone")
        rows, shape = inverse.rows(total, part.shape, config)
        index.append(rows)
    order = np.concatenate(index)
    if len(order) != total or not np.array_equal(np.sort(order), np.arange(total)):
        raise ModelError(f"{parts[0].name!r} and its parts do not make a whole")
    whole = reshape(take(concatenated(flat, parts[0].name), np.argsort(order)), shape)
    return inverses[0].invert_multimodal(whole, config)


def _unstacked(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return each expert's matrix."""
    flat, each = reshape(tensor, (tensor.rows, tensor.width)), math.prod(tensor.shape[1:-1])
    experts = {}
    for expert in range(tensor.shape[0]):
        rows = take(flat, np.arange(expert * each, (expert + 1) * each))
        own = name.replace("{e}", str(expert)).replace("{j}", str(expert))
        experts[own] = replace(rows, shape=tensor.shape[1:]).renamed(own)
    return experts


def _from_scalars(
    architecture: Architecture, pattern: str, target: PerLayerScalars, metadata: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensor with one number a layer from a metadata array."""
    values = np.asarray(metadata.get(full_key(architecture, target.key), ()), np.float32)
    names = [source_name(architecture, pattern.replace("{i}", str(i)), "blk") for i in range(len(values))]
    return {name: replace(from_array(name, values[i : i + 1]), shape=target.shape) for i, name in enumerate(names)}


def source_name(architecture: Architecture, bare: str, gguf_name: str) -> str:
    """Return a source name as checkpoints of the architecture have it, with the wrapper's prefix."""
    wrapper = architecture.prefixes[0]
    return f"{wrapper}.{bare}" if wrapper and SUFFIX.sub("", gguf_name) not in OUTSIDE else bare
