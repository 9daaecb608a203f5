"""Every tiny image and video model: the layouts of all readers from weights and from GGUF files, and adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from archs.diffusion.layout import published_shape
from archs.diffusion.spec import READERS
from gguftools.conversion.options import ConvertOptions
from gguftools.writing.options import WriteOptions
from tests import diffusion_models

OVER = WriteOptions(overwrite=True)
RANK = 2


def published(path: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Return the tensors of a file in the shapes that they were published in, with their values.

    Under their published names: files for diffusers have the prefix that its U-Nets look for.
    """
    with gguftools.open(path) as model:
        return {
            name.removeprefix("model.diffusion_model."): (
                published_shape(model.metadata, name, each.shape),
                np.asarray(each).tobytes(),
            )
            for name, each in model.tensors.items()
        }


@pytest.mark.parametrize("name", diffusion_models.MODELS)
def test_layouts(tmp_path, name):
    source = diffusion_models.write(tmp_path / "x.safetensors", name)
    gguftools.convert(source, tmp_path / "base.gguf")
    base = published(tmp_path / "base.gguf")
    shapes = {each: values.shape for each, values in diffusion_models.arrays(name).items() if each in base}
    assert {each: shape for each, (shape, _) in base.items()} == shapes
    for reader in READERS:
        options = ConvertOptions(reader=reader)
        for given in (source, tmp_path / "base.gguf"):
            gguftools.convert(given, tmp_path / "again.gguf", options=options, write=OVER)
            assert published(tmp_path / "again.gguf").keys() == base.keys()
        gguftools.convert(tmp_path / "again.gguf", tmp_path / "back.gguf", write=OVER)
        assert published(tmp_path / "back.gguf") == published(tmp_path / "again.gguf")


@pytest.mark.parametrize("name", ["sd35_medium", "aura", "z_image", "wan_i2v", "krea2"])
def test_first_dimensions_of_1_come_back(tmp_path, name):
    """stable-diffusion.cpp leaves them out of its files, which have no keys."""
    source = diffusion_models.write(tmp_path / "x.safetensors", name)
    gguftools.convert(source, tmp_path / "base.gguf")
    base = published(tmp_path / "base.gguf")
    with gguftools.open(tmp_path / "base.gguf") as model:
        for key in list(model.metadata):
            del model.metadata[key]
        cut = {}
        for each, tensor in model.tensors.items():
            shape = tensor.shape[1:] if len(tensor.shape) > 1 and tensor.shape[0] == 1 else tensor.shape
            cut[each] = replace(tensor, shape=shape)
        assert any(cut[each].shape != model.tensors[each].shape for each in cut)
        gguftools.Model(model.metadata, cut).save(tmp_path / "sd.gguf")
    gguftools.convert(tmp_path / "sd.gguf", tmp_path / "back.gguf")
    back = published(tmp_path / "back.gguf")
    assert {each: shape for each, (shape, _) in back.items()} == {each: shape for each, (shape, _) in base.items()}


@pytest.mark.parametrize("name", diffusion_models.ONE_PER_FAMILY)
def test_adapters(tmp_path, name):
    """Every matrix of every family has its kohya name, without a dot, and its published one."""
    source = diffusion_models.write(tmp_path / "x.safetensors", name)
    gguftools.convert(source, tmp_path / "base.gguf", "F32")
    with gguftools.open(tmp_path / "base.gguf") as model:
        base = {each: np.array(tensor) for each, tensor in model.tensors.items()}
    matrices = [each for each, values in base.items() if values.ndim == 2 and each.endswith(".weight")]
    for kohya in (True, False):
        adapter = {}
        for each in matrices:
            module = each.removesuffix(".weight")
            stem = f"lora_unet_{module.replace('.', '_')}" if kohya else f"diffusion_model.{module}"
            rows, width = base[each].shape
            adapter[f"{stem}.lora_down.weight"] = np.full((RANK, width), 0.5, np.float32)
            adapter[f"{stem}.lora_up.weight"] = np.full((rows, RANK), 0.25, np.float32)
        save_file(adapter, tmp_path / "lora.safetensors")
        options = ConvertOptions(merge_lora=[tmp_path / "lora.safetensors"])
        gguftools.convert(source, tmp_path / "merged.gguf", "F32", options=options, write=OVER)
        with gguftools.open(tmp_path / "merged.gguf") as model:
            for each, before in base.items():
                after = before + np.float32(0.25) if each in matrices else before
                assert np.array_equal(np.asarray(model.tensors[each]), after), each
