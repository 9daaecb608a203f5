"""ComfyUI's files with something wrong at random: they are read, or refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from archs.prequantized.comfy import unpacked_weights
from archs.prequantized.comfy_formats import FORMATS
from quants.errors import ModelError

from .comfy_writers import CASES, as_bytes
from .writers import Parts, stored

WEIGHT = np.random.default_rng(36).standard_normal((140, 256)).astype(np.float32)
WRONG = [0, 1, 2, 3, 4, 8, 15, 16, 17, 64, 96, 128, 140, 256, -1, 1 << 31, 1.5, "x", None, True, [], {}, [140, 256]]
KEYS = ("format", "convrot", "convrot_groupsize", "group_size", "shape", "orig_shape", "blocksize", "params")
STORED: dict[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "I32": np.int32,
    "I8": np.int8,
    "BOOL": np.uint8,
    "F64": np.float64,
}
STORED |= dict.fromkeys(("U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), np.uint8)


def damaged(random: Any, settings: dict[str, Any], parts: Parts) -> tuple[dict[str, Any], Parts]:
    """A layer that lacks a part, or has one of another shape or type, or other settings."""
    settings, parts = dict(settings), dict(parts)
    name = str(random.choice(sorted(parts)))
    way = random.integers(4)
    if way == 0 and len(parts) > 1:
        del parts[name]
    elif way == 1:
        shape = tuple(random.choice([0, 1, 2, 4, 15, 16, 64, 128, 144, 256], random.integers(4)).tolist())
        dtype = str(random.choice(sorted(STORED)))
        parts[name] = dtype, np.zeros(shape, STORED[dtype])
    elif way == 2:
        size = parts[name][1].dtype.itemsize
        parts[name] = (
            str(random.choice([t for t in sorted(STORED) if np.dtype(STORED[t]).itemsize == size])),
            parts[name][1],
        )
    elif settings:
        settings[str(random.choice(KEYS))] = WRONG[random.integers(len(WRONG))]
        if random.integers(2):
            settings["format"] = str(random.choice(sorted(FORMATS)))
    return settings, parts


@pytest.mark.parametrize("name", CASES)
def test_damage_is_read_or_refused_in_one_line(name: str) -> None:
    """Nothing but a ModelError, whatever is wrong; what is read can be decoded."""
    random = np.random.default_rng(len(name))
    settings, parts, _ = CASES[name](WEIGHT)
    messages = []
    for _ in range(60):
        other, damaged_parts = damaged(random, *damaged(random, settings, parts))
        layers = {f"a.0.{key}": part for key, part in damaged_parts.items()}
        tensors = stored(layers | ({"a.0.comfy_quant": as_bytes(other)} if other else {}))
        try:
            found = unpacked_weights(tensors, {})
        except ModelError as error:
            messages.append(str(error))
            continue
        for tensor in found.tensors.values():
            assert tensor.float32().shape == tensor.shape
            tensor.raw(min(3, tensor.rows), min(5, tensor.rows))
    assert len(messages) > 15
    assert not any("\n" in message for message in messages)
