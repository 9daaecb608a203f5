"""A tiny model of every family of image models in every recipe: all tensors are there, with their shapes and values."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import gguftools
from archs.diffusion.layout import published_shape
from gguftools.quantization.recipes import RECIPES
from gguftools.writing.options import WriteOptions
from tests import diffusion_models

OTHERS = (None, "F32", "F16", "BF16", "Q1_0")  # Q1_0 takes no rows of 64 values, and has no other format for them
QUANTIZING = [name for name, recipe in RECIPES.items() if recipe.default not in OTHERS]
FOR_FEW_VALUES = ("TQ1_0", "TQ2_0", "Q2_0")  # formats that random numbers do not fit
AT_ONCE = 6  # recipes of a model; each recipe is tried on several models


def write_matrix(path, source):
    """An importance matrix in which all columns weigh alike."""
    weights = {name: each for name, each in gguftools.open(source).tensors.items() if len(each.shape) == 2}
    data = struct.pack("<i", len(weights))
    for name, tensor in weights.items():
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 1, tensor.width)
        data += np.ones(tensor.width, "<f4").tobytes()
    path.write_bytes(data)
    return path


def recipes_for(number):
    start = number * AT_ONCE
    return [QUANTIZING[i % len(QUANTIZING)] for i in range(start, start + AT_ONCE)]


@pytest.mark.parametrize("number", range(len(diffusion_models.ONE_PER_FAMILY)))
def test_values_are_within_the_format(number, tmp_path):
    model = diffusion_models.ONE_PER_FAMILY[number]
    source = diffusion_models.write(tmp_path / "model.safetensors", model)
    base = gguftools.convert(source, tmp_path / "base.gguf", "F32").outputs[0].file
    wanted = gguftools.open(base).tensors
    matrix = write_matrix(tmp_path / "matrix.dat", base)
    recipes = recipes_for(number)
    report = gguftools.quantize(source, recipes, f"{tmp_path}/", imatrix=matrix, write=WriteOptions(overwrite=True))
    assert [output.recipe for output in report.outputs] == recipes
    for output in report.outputs:
        made = gguftools.open(output.file)
        assert set(made.tensors) == set(wanted)
        assert made.metadata["general.file_type"] == RECIPES[output.recipe].file_type
        for name, tensor in made.tensors.items():
            assert tensor.shape == wanted[name].shape
            published = published_shape(made.metadata, name, tensor.shape)
            assert published == diffusion_models.shapes(model)[name][0]
            check_values(np.asarray(tensor), np.asarray(wanted[name]), tensor.format)


def check_values(values, original, form):
    assert np.isfinite(values).all()
    if form.name in FOR_FEW_VALUES or not original.any():
        return
    error = np.sqrt(np.square(values - original).sum() / np.square(original).sum())
    assert error < 1.25 * 2 ** (1 - min(form.bits_per_weight, 9)), form.name
