"""Tiny checkpoints of all image and video models, converted and quantized: files as ComfyUI-GGUF and the gguf package
read them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, dequantize
from numpy.typing import NDArray

import gguftools
from archs.diffusion.detection import all_families
from archs.diffusion.formats import may_be_quantized
from archs.diffusion.layout import shape_key
from archs.diffusion.spec import DiffusionFamily
from gguftools import open as open_model
from quants.errors import ModelError
from tests import diffusion_models
from tests.diffusion_models import MODELS, ONE_PER_FAMILY

FAMILIES = {family.name: family for family in all_families()}
OUTTYPES = ("auto", "F16", "BF16", "F32", "Q8_0")
ROUNDING = {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}  # of a value, relative to it
SMALLEST = 2.0**-24  # of F16
Files = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the file of a model in a type, "" for the checkpoint; each is written once."""
    folder = tmp_path_factory.mktemp("diffusion")

    def path_of(model: str, outtype: str) -> Path:
        path = folder / f"{model}-{outtype}.gguf" if outtype else folder / f"{model}.safetensors"
        if not path.exists():
            if outtype:
                gguftools.convert(path_of(model, ""), path, outtype)
            else:
                diffusion_models.write(path, model)
        return path

    return path_of


def family_of(model: str) -> DiffusionFamily:
    return FAMILIES[MODELS[model].family]


def accounted(model: str) -> dict[str, tuple[int, ...]]:
    """The tensors that must be in a file, in their published shapes."""
    ignored = family_of(model).ignored
    return {
        name: shape
        for name, (shape, _) in diffusion_models.shapes(model).items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)
    }


def original_shapes(reader: GGUFReader) -> dict[str, tuple[int, ...]]:
    """The shapes that ComfyUI-GGUF gives to tensors: of the keys, which must be arrays of INT32, or the file's."""
    found = {}
    for tensor in reader.tensors:
        field = reader.get_field(shape_key(tensor.name))
        if field is None:
            found[tensor.name] = tuple(int(size) for size in reversed(tensor.shape))
        else:
            assert field.types == [GGUFValueType.ARRAY, GGUFValueType.INT32]
            found[tensor.name] = tuple(int(field.parts[index][0]) for index in field.data)
    return found


def tolerance(source: NDArray[np.float32], form: str) -> NDArray[np.float32]:
    """How far a value may be from its source in a format."""
    if form == "Q8_0":
        blocks = np.abs(source).reshape(-1, 32).max(axis=1, keepdims=True)
        return np.broadcast_to(blocks * np.float32(0.51 / 127 + 2.0**-11), (len(blocks), 32)).reshape(source.shape)
    return np.abs(source) * np.float32(ROUNDING[form]) + (SMALLEST if form == "F16" else 0)


@pytest.mark.parametrize("model", MODELS)
def test_keys_and_shapes(files: Files, model: str) -> None:
    reader = GGUFReader(files(model, "auto"))
    tag = reader.get_field("general.architecture")
    assert tag is not None
    assert tag.contents() == family_of(model).tag
    for key, text in MODELS[model].header.items():
        field = reader.get_field(key)
        assert field is not None
        assert field.contents() == text
    shapes = accounted(model)
    assert original_shapes(reader) == shapes
    assert {each.name for each in reader.tensors if reader.get_field(shape_key(each.name))} == {
        name for name, shape in shapes.items() if len(shape) > 4
    }


@pytest.mark.parametrize("outtype", OUTTYPES)
@pytest.mark.parametrize("model", ONE_PER_FAMILY)
def test_values_and_types(files: Files, model: str, outtype: str) -> None:
    arrays = diffusion_models.arrays(model)
    family = family_of(model)
    reader = GGUFReader(files(model, outtype))
    ours = open_model(files(model, outtype)).tensors
    for tensor in reader.tensors:
        source = np.asarray(arrays[tensor.name], np.float32)
        shape, form = source.shape, tensor.tensor_type.name
        assert form in allowed(family, tensor.name, shape, MODELS[model].type, outtype), tensor.name
        read = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        assert (np.abs(read - source) <= tolerance(source, form)).all(), tensor.name
        mine = ours[tensor.name]
        assert mine.format.name == form
        assert mine.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert np.array_equal(mine.float32().reshape(shape), read)


def allowed(family: DiffusionFamily, name: str, shape: tuple[int, ...], stored: str, outtype: str) -> set[str]:
    """The formats that a tensor may have in a file: F32 is for what must be precise, whatever the type."""
    if may_be_quantized(family, name, shape):
        if outtype == "Q8_0":
            return {"Q8_0"} if shape[-1] % 32 == 0 else {"F16", "BF16"}
        return {stored if outtype == "auto" else outtype}
    if len(shape) == 1 and stored != "F16":
        return {"F32"}
    return {"F32", stored if outtype == "auto" else "F16" if outtype == "Q8_0" else outtype, stored}


@pytest.mark.parametrize("model", ONE_PER_FAMILY)
def test_recipe_from_checkpoint_and_from_file(files: Files, model: str, tmp_path: Path) -> None:
    """From both the same file; kept weights are those of the unquantized file.

    Of a checkpoint in F32 the kept weights are F16 as in ComfyUI-GGUF's files, those of its F32 file stay.
    """
    gguftools.quantize(files(model, ""), "Q4_K_M", tmp_path / "checkpoint.gguf")
    gguftools.quantize(files(model, "auto"), "Q4_K_M", tmp_path / "file.gguf")
    first, second = (GGUFReader(tmp_path / f"{name}.gguf") for name in ("checkpoint", "file"))
    unquantized = {tensor.name: tensor for tensor in GGUFReader(files(model, "auto")).tensors}
    shapes = accounted(model)
    assert original_shapes(first) == original_shapes(second) == shapes
    quantized = 0
    for from_checkpoint, from_file in zip(first.tensors, second.tensors, strict=True):
        name, plain = from_file.name, unquantized[from_file.name]
        assert from_checkpoint.name == name
        if may_be_quantized(family_of(model), name, shapes[name]):
            quantized += from_file.tensor_type != plain.tensor_type
            assert np.array_equal(from_checkpoint.data, from_file.data), name
        else:
            assert from_file.tensor_type == plain.tensor_type, name
            assert np.array_equal(from_file.data, plain.data), name
    assert quantized
    if MODELS[model].type != "F32":
        assert (tmp_path / "checkpoint.gguf").read_bytes() == (tmp_path / "file.gguf").read_bytes()


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "diffusion_model.", "model.", "net."])
def test_prefixes_and_other_parts_are_left_out(files: Files, prefix: str, tmp_path: Path) -> None:
    others = {
        "first_stage_model.decoder.conv_in.weight": np.zeros((4, 4, 3, 3), np.float16),
        "text_encoders.clip_l.transformer.text_model.final_layer_norm.weight": np.ones(64, np.float16),
    }
    path = diffusion_models.write(tmp_path / "all.safetensors", "wan22_ti2v", prefix, others)
    gguftools.convert(path, tmp_path / "all.gguf")
    bare = open_model(files("wan22_ti2v", "auto"))
    found = open_model(tmp_path / "all.gguf")
    assert list(found.tensors) == list(bare.tensors)
    for name, tensor in bare.tensors.items():
        assert np.array_equal(found.tensors[name].raw(), tensor.raw())


@pytest.mark.parametrize("model", ["flux_dev", "sdxl", "wan_t2v"])
@pytest.mark.parametrize("hidden", [192, 320])
def test_rows_that_are_no_multiple_of_256(model: str, hidden: int, tmp_path: Path) -> None:
    path = diffusion_models.write(tmp_path / "m.safetensors", model, hidden=hidden)
    gguftools.quantize(path, "Q4_K_M", tmp_path / "m.gguf")
    reader = GGUFReader(tmp_path / "m.gguf")
    arrays = diffusion_models.arrays(model, hidden)
    for tensor in reader.tensors:
        read = dequantize(tensor.data, tensor.tensor_type).reshape(arrays[tensor.name].shape)
        source = np.asarray(arrays[tensor.name], np.float32)
        assert np.sqrt(np.mean((read - source) ** 2)) <= 0.1 * np.sqrt(np.mean(source**2)), tensor.name


def test_a_marker_without_values(files: Files) -> None:
    """Of Qwen-Image-Edit 2511: ComfyUI asks only whether the tensor is there."""
    marker = open_model(files("qwen_image_edit_2511", "auto")).tensors["__index_timestep_zero__"]
    assert marker.shape == (0,)


def test_what_is_no_model_is_refused_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lora.safetensors"
    lora = {f"double_blocks.0.img_attn.proj.lora_{name}.weight": np.zeros((4, 4), np.float16) for name in "AB"}
    diffusion_models.save_file(lora, path)
    with pytest.raises(ModelError, match=r"lora.safetensors: this seems to be a LoRA or another adapter, not an image"):
        gguftools.convert(path, tmp_path / "lora.gguf")
    assert not (tmp_path / "lora.gguf").exists()
