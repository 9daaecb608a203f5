"""Models of real widths, made from the small ones of tests/data/absent_keys: keys and shapes, without weights."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import read_hparams
from archs.layer_types import type_of_layer
from archs.layered import LayeredModel, by_layer
from archs.metadata import Metadata, ValueType
from archs.registry import of_file
from archs.tensor_shapes import OUTSIDE, OUTSIDE_OF_LAST_TOKENS, evaluated
from archs.validation.tensor_validators import _matches, parts_of, sizes_of
from quants.tensor import Tensor
from tests import absent_keys

from .absent_keys import as_stored, as_text

TYPES = {"F32": (0, 4), "F16": (1, 2), "I32": (26, 4)}
WIDE = ("vocabulary", "ffn")


@dataclass(frozen=True)
class Wide:
    """A model of real widths. small: the one it is made from. keys: without the architecture. sizes: that no key
    gives. layers: the small model's layer for each of its layers.
    """

    small: str
    layers: tuple[int, ...]
    keys: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)


def empty(name: str, shape: tuple[int, ...], kind: str = "F32") -> Tensor:
    """A tensor without values."""
    import numpy as np

    from quants.tensor import from_array

    scalar = np.zeros((), {"F32": np.float32, "F16": np.float16, "I32": np.int32}[kind])
    return from_array(name, np.broadcast_to(scalar, shape))


def wide(model: Wide) -> tuple[Metadata, dict[str, Tensor]]:
    """The metadata and the tensors of a wide model."""
    small = absent_keys.descriptions()[model.small]
    architecture = small.architecture
    before = Metadata()
    for key, value in small.keys.items():
        before.set(key, value[-1], *(ValueType[each] for each in value[:-1]))
    old = {row[0]: empty(row[0], tuple(row[2]), row[1]) for row in small.tensors}
    after = Metadata()
    changed = {f"{architecture}.{key}": value for key, value in model.keys.items()}
    changed[f"{architecture}.block_count"] = len(model.layers)
    for key in [*before, *(key for key in changed if key not in before)]:
        stored = before.value(key) if key in before else None
        value = changed.get(key, stored.data if stored else None)
        if isinstance(value, (list, tuple)) or hasattr(value, "dtype"):
            if not len(value):
                continue
            item = value[0]
            element = (stored.element if stored else None) or (
                ValueType.BOOL if isinstance(item, bool) else ValueType.FLOAT32 if isinstance(item, float) else ValueType.UINT32
            )
            after.set(key, [getattr(each, "item", lambda each=each: each)() for each in value], ValueType.ARRAY, element)
        elif value is not None:
            types = stored.type if stored and stored.element is None else (
                ValueType.FLOAT32 if isinstance(value, float) else ValueType.UINT32
            )
            after.set(key, value, types)
    grouped = by_layer(old)
    count = 1 + max((int(prefix.split(".")[1]) for prefix in grouped if prefix.startswith("blk.")), default=-1)
    names = {role: tensor for role, tensor in grouped[""].items()}
    for index, origin in enumerate(model.layers):
        for role, tensor in grouped[f"blk.{min(origin, count - 1)}."].items():
            names[f"blk.{index}.{role}"] = tensor
    spec = of_file(architecture, before)
    was = LayeredModel(spec, Keys.of(spec, before), grouped)
    now = LayeredModel(spec, Keys.of(spec, after), by_layer(names))
    old_hparams, hparams = read_hparams(spec, before, old), read_hparams(spec, after, names)
    made: dict[str, Tensor] = {}
    for name, tensor in names.items():
        inside = name.startswith("blk.")
        index = int(name.split(".")[1]) if inside else 0
        origin = min(model.layers[index], count - 1) if inside else 0
        role = name.split(".", 2)[2] if inside else name
        start = f"blk.{origin}."
        if inside:
            own = old_hparams.layers[min(origin, len(old_hparams.layers) - 1)]
            layer_type = type_of_layer(spec.block, was.keys, origin, was.grouped[start], old_hparams.parallel)
            parts = [part for _, part in parts_of(was, start, own, layer_type)]
        else:
            parts = [OUTSIDE_OF_LAST_TOKENS if spec.block.last_tokens else OUTSIDE]
        sizes = sizes_of(was, old_hparams, origin)
        sizes = {key: value for key, value in sizes.items() if key not in WIDE or value}
        wanted = sizes_of(now, hparams, index)
        for each in (sizes, wanted):
            for key in ("embedded", "projected"):
                each.setdefault(key, each["width"])
        made[name] = shaped(name, role, tensor, parts, sizes, {**wanted, **model.sizes})
    vocabulary = made["token_embd.weight"].shape[0]
    after.set("tokenizer.ggml.model", "no_vocab", ValueType.STRING)
    after.set(f"{architecture}.vocab_size", vocabulary, ValueType.UINT32)
    return after, made


def shaped(name: str, role: str, tensor: Tensor, parts: Any, sizes: dict[str, int], wanted: dict[str, int]) -> Tensor:
    """A tensor in the wide model's shape."""
    if role.startswith("rope_f") or role == "rope_freqs.weight":
        return empty(name, (wanted["rotated"] // 2,))
    for part in parts:
        for alternative in part.table.get(role, ()):
            own = dict(sizes)
            if not _matches(tensor.shape, (alternative,), own):
                continue
            known = {**own, **wanted}
            shape = tuple(evaluated(terms, known) for terms in alternative)
            if None in shape:
                raise SystemExit(f"{name}: sizes of {alternative} are missing")
            return empty(name, shape, kind_of(name, len(shape)))
    if prod(tensor.shape) == 1 or role.endswith(".scale"):
        return empty(name, tensor.shape)
    raise SystemExit(f"{name} {tensor.shape}: no part has it")


def kind_of(name: str, dimensions: int) -> str:
    """The type of a tensor, as converters write it in files of half precision."""
    kept = ("norm", "gate_inp", "ssm_conv1d", "ssm_a", "ssm_d.", "shortconv.conv", "time_mix", "altup", "scale")
    matrix = dimensions > 1 and not any(each in name for each in kept)
    return "F16" if matrix or "time_mix_key" in name or "time_mix_value" in name or "time_mix_output" in name or "time_mix_receptance" in name or "time_mix_gate" in name else "F32"


def write(path: Path, metadata: Metadata, tensors: Mapping[str, Tensor]) -> None:
    """A GGUF file with a hole where the weights would be."""
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
        for key in metadata:
            value = metadata.value(key)
            file.write(as_text(key) + struct.pack("<I", value.type))
            if value.element is None:
                file.write(as_stored(value.data, value.type))
            else:
                file.write(struct.pack("<IQ", value.element, len(value.data)))
                file.write(b"".join(as_stored(item, value.element) for item in value.data))
        place = 0
        for name, tensor in tensors.items():
            number, size = TYPES[tensor.format.name]
            shape = tensor.shape
            file.write(as_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, place))
            place += -(-prod(shape) * size // 32) * 32
        file.write(bytes(-file.tell() % 32))
        file.truncate(file.tell() + place)


NORMAL = {"context_length": 131072}
MODELS = {
    "llama-mha": Wide(
        "llama2-spm", (0,) * 6,
        {**NORMAL, "embedding_length": 4096, "feed_forward_length": 11008, "attention.head_count": 32,
         "attention.head_count_kv": 32, "rope.dimension_count": 128, "attention.key_length": 128, "attention.value_length": 128},
        {"vocabulary": 32000},
    ),
    "llama-gqa": Wide(
        "llama3-gqa-rope-tied", (0,) * 16,
        {**NORMAL, "embedding_length": 2048, "feed_forward_length": 8192, "attention.head_count": 32,
         "attention.head_count_kv": 8, "rope.dimension_count": 64, "attention.key_length": 64, "attention.value_length": 64},
        {"vocabulary": 128256},
    ),
}
