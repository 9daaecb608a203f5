"""Small weights as comfy-kitchen stores them: we decode what it decodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from archs.prequantized.comfy import unpacked_weights
from archs.prequantized.comfy_formats import FORMATS
from archs.prequantized.comfy_settings import layer_settings
from gguftools.io.checkpoint.safetensors import open_safetensors, read_metadata
from tests.conftest import DATA

FILES = sorted(DATA.glob("comfy/*.safetensors"))
KEPT_AS_BLOCKS = {"nvfp4-power": "NVFP4"}
ROTATED = ("convrot", "w4a4", "w4a8", "w6a8")  # the library multiplies by a matrix, in an order of its own


def test_all_formats_are_there() -> None:
    found = {layer_settings(open_safetensors(path), {})["w"]["format"] for path in FILES}
    others = {name for name in FORMATS if name == "nf4" or name.endswith(("_rowwise", "_blockwise"))}  # other tools'
    assert found == set(FORMATS) - others


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_values_are_the_librarys(path: Path) -> None:
    tensors = open_safetensors(path)
    expected = tensors.pop("expected").float32()
    found = unpacked_weights(tensors, read_metadata(path))
    assert set(found.tensors) - {"w.bias"} == {"w.weight"}
    weight = found.tensors["w.weight"]
    assert weight.format.name == KEPT_AS_BLOCKS.get(path.stem, "F32")
    if "w.bias" in tensors:
        assert weight.shape[0] == tensors["w.bias"].size < tensors["w.weight"].shape[0]
    values = weight.float32()[:: int(read_metadata(path)["every"])]
    assert values.shape == expected.shape
    if any(each in path.stem for each in ROTATED):
        assert np.abs(values - expected).max() < 1e-6 * np.abs(expected).max()
    else:
        np.testing.assert_array_equal(values, expected)
    for start, stop in ((0, 0), (3, 4), (1, 9), (weight.shape[0] - 1, weight.shape[0])):
        np.testing.assert_array_equal(weight.raw(start, stop), weight.raw()[start:stop])
