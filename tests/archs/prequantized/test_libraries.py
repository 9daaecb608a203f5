"""Small weights as the libraries that define the formats store them: we decode what those libraries decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.prequantized import unpacked
from gguftools.io.checkpoint.safetensors import open_safetensors
from tests.conftest import DATA

FILES = sorted(DATA.glob("packed/*.safetensors"))
KEPT_AS_BLOCKS = {"compressed-nvfp4-power": "NVFP4", "compressed-mxfp4": "MXFP4"}
EVERY = {"bitsandbytes-nf4-storage": 160}  # of a long weight only every so many rows were recorded


def settings(path: Path) -> Any:
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return json.loads(header["__metadata__"]["quantization_config"])


def test_all_methods_are_there() -> None:
    assert {settings(path)["quant_method"] for path in FILES} >= {
        "gptq",
        "awq",
        "bitsandbytes",
        "compressed-tensors",
        "modelopt",
        "fp8",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_values_are_the_librarys(path: Path) -> None:
    tensors = open_safetensors(path)
    expected = tensors.pop("expected").float32()
    found = unpacked({"quantization_config": settings(path)}, tensors)
    assert list(found.tensors) == ["w.weight"]
    weight = found.tensors["w.weight"]
    assert weight.format.name == KEPT_AS_BLOCKS.get(path.stem, "F32")
    assert weight.shape[-1] == expected.shape[-1]
    every = EVERY.get(path.stem, 1)
    np.testing.assert_array_equal(weight.float32()[::every], expected)
    for start, stop in ((0, 0), (3, 4), (1, 10), (7, 16)):
        np.testing.assert_array_equal(weight.raw(start, stop), weight.raw()[start:stop])
