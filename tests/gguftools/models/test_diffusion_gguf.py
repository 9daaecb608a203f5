"""GGUF files of image models by other programs: without a tag, with a prefix, in other shapes, with other names."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from archs.metadata import Metadata
from gguftools.io.gguf import reader
from gguftools.writing.options import WriteOptions
from gguftools.writing.pipeline import FilePlan, Item, write_files
from quants import from_array
from quants.errors import ModelError, OptionError
from tests import diffusion_models
from tests.archs.diffusion.from_diffusers.test_layouts import NAMES, random_tensors

OVER = WriteOptions(overwrite=True)


def values(path):
    with gguftools.open(path) as model:
        return {name: (each.format.name, each.shape, each.raw().tobytes()) for name, each in model.tensors.items()}


def write(path, arrays, metadata=None):
    """A GGUF file of arrays as they are."""
    tensors = [from_array(name, np.ascontiguousarray(array)) for name, array in arrays.items()]
    write_files([FilePlan(path, Metadata(metadata or {}), tuple(Item(each, each.format) for each in tensors))])
    return path


def stored(model, prefix="", folded=False, cut=False):
    """A model's tensors as F16 and F32. folded, cut: as stable-diffusion.cpp shapes them."""
    found = {}
    for name, array in diffusion_models.arrays(model).items():
        shape = array.shape
        if folded and len(shape) > 4:
            shape = (shape[0] * shape[1], *shape[2:])
        while cut and len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        is_weight = len(shape) > 1 and name.endswith("weight") and array.ndim < 5
        found[prefix + name] = array.astype(np.float16 if is_weight else np.float32).reshape(shape)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@pytest.mark.parametrize("model", ["flux_dev", "wan_i2v", "sdxl", "qwen_image"])
def test_a_converted_file_gives_the_same_as_its_source(folder, model):
    source = diffusion_models.write(folder / f"{model}.safetensors", model)
    base = gguftools.convert(source, folder / f"{model}.gguf").outputs[0].file
    once = gguftools.quantize(source, "Q4_K_M", folder / f"{model}-1.gguf").outputs[0].file
    report = gguftools.quantize(base, "Q4_K_M", folder / f"{model}-2.gguf")
    assert report.warnings == []
    assert values(report.outputs[0].file) == values(once)


def test_rearranged_convolutions_are_quantized(folder):
    """The layout that ComfyUI-GGUF alone reads, in which rows of convolutions take K blocks."""
    source = diffusion_models.write(folder / "unet.safetensors", "sdxl")
    options = gguftools.ConvertOptions(reader="comfyui")
    once = gguftools.convert(source, folder / "once.gguf", "Q4_K_M", options=options).outputs[0].file
    base = gguftools.convert(source, folder / "unet.gguf", options=options).outputs[0].file
    made = gguftools.quantize(base, "Q4_K_M", folder / "twice.gguf").outputs[0].file
    assert values(made) == values(once)
    form, shape, _ = values(made)["input_blocks.1.0.in_layers.2.weight"]
    assert (form, shape[1]) == ("Q4_K", 256)


def test_no_key_and_a_prefix(folder):
    """As stable-diffusion.cpp writes files: shapes without first ones, and convolutions over time folded."""
    arrays = stored("wan_t2v", "model.diffusion_model.", folded=True, cut=True)
    source = write(folder / "sd.gguf", arrays)
    report = gguftools.quantize(source, "Q4_0", folder / "of-sd.gguf")
    with gguftools.open(folder / "of-sd.gguf") as model:
        assert model.architecture == "wan"
        assert set(model.tensors) == {name.removeprefix("model.diffusion_model.") for name in arrays}
        assert list(model.metadata["comfy.gguf.orig_shape.patch_embedding.weight"]) == [256, 16, 1, 2, 2]
        assert model.tensors["patch_embedding.weight"].shape == (4096, 1, 2, 2)
        assert model.tensors["blocks.0.ffn.2.weight"].format.name == "Q4_1"
    assert "sd.gguf has no tag; 'wan', which its names tell, is written instead" in report.warnings
    assert any("start from the original checkpoint" in each for each in report.warnings)


@pytest.mark.parametrize("tag", ["pig", "cow", "qwen", "flux2"])
def test_other_tags(folder, tag):
    source = write(folder / f"{tag}.gguf", stored("flux_dev"), {"general.architecture": tag, "general.name": "mine"})
    report = gguftools.quantize(source, "Q4_K_M", folder / f"of-{tag}.gguf")
    assert report.warnings == [f"{tag}.gguf has the tag {tag!r}; 'flux', which its names tell, is written instead"]
    with gguftools.open(folder / f"of-{tag}.gguf") as model:
        assert (model.architecture, model.metadata["general.name"]) == ("flux", "mine")
        assert model.tensors["double_blocks.0.img_attn.qkv.weight"].format.name == "Q5_K"


def test_five_dimensions_in_the_file(folder):
    source = write(folder / "five.gguf", stored("wan_t2v"), {"general.architecture": "wan"})
    assert len(reader.open_gguf(source).tensors["patch_embedding.weight"].shape) == 5
    gguftools.quantize(source, "Q8_0", folder / "of-five.gguf")
    with gguftools.open(folder / "of-five.gguf") as model:
        assert model.tensors["patch_embedding.weight"].shape == (4096, 1, 2, 2)
        assert model.tensors["blocks.0.modulation"].shape == (1, 6, 256)


def test_five_dimensions_in_a_file_beside_it(tmp_path):
    """As ComfyUI-GGUF's converter leaves them."""
    arrays = stored("wan_t2v")
    fixed = {"patch_embedding.weight": arrays.pop("patch_embedding.weight")}
    save_file(fixed, tmp_path / "fix_5d_tensors_wan.safetensors")
    source = write(tmp_path / "base.gguf", arrays, {"general.architecture": "wan"})
    report = gguftools.quantize(source, "Q8_0", tmp_path / "out.gguf")
    assert "patch_embedding.weight" in gguftools.open(tmp_path / "out.gguf").tensors
    assert any("fix_5d_tensors_wan.safetensors joined" in each for each in report.warnings)


@pytest.mark.parametrize("tag", ["../../wan", "a/b", ""])
def test_a_tag_that_is_none_names_no_file(tmp_path, tag):
    source = write(tmp_path / "base.gguf", stored("wan_t2v", folded=True), {"general.architecture": tag})
    gguftools.convert(source, tmp_path / "again.gguf")
    assert gguftools.open(tmp_path / "again.gguf").architecture == "wan"


FLUX = next(name for name in NAMES if name.startswith("flux"))


@pytest.mark.parametrize("metadata", [{}, {"general.architecture": "flux"}])
def test_names_of_diffusers(tmp_path, metadata):
    """The peer's quantizer ends with an error on them."""
    arrays = {name: tensor.elements().reshape(tensor.shape) for name, tensor in random_tensors(FLUX).items()}
    source = write(tmp_path / "diffusers.gguf", arrays, metadata)
    gguftools.quantize(source, "Q8_0", tmp_path / "out.gguf")
    with gguftools.open(tmp_path / "out.gguf") as model:
        assert model.architecture == "flux"
        assert "double_blocks.0.img_attn.qkv.weight" in model.tensors


def test_a_tag_whose_names_are_not_known(tmp_path):
    arrays = {"strange.0.weight": np.ones((512, 256), np.float16), "img_in.weight": np.ones((512, 256), np.float16)}
    source = write(tmp_path / "strange.gguf", arrays, {"general.architecture": "flux"})
    report = gguftools.quantize(source, "Q4_K_S", tmp_path / "out.gguf")
    known = "no known model with the tag 'flux' has tensors of these names"
    assert report.warnings == [f"{known}; its matrices are quantized but for those that such models keep"]
    assert [each.format for each in report.outputs[0].tensors] == ["Q4_K", "F16"]


MISSING = [{}, {"general.architecture": "pig"}, {"general.architecture": "flux"}]


def test_a_tag_of_another_family(tmp_path):
    """Programs tell a model by its names, and so do we."""
    source = write(tmp_path / "wan.gguf", stored("wan_i2v", folded=True), {"general.architecture": "flux"})
    report = gguftools.quantize(source, "Q4_K_M", tmp_path / "out.gguf")
    assert report.warnings == ["the tensors are those of Wan, whose tag is 'wan'; the file says 'flux'"]
    chosen = {tensor.name: tensor.format for tensor in report.outputs[0].tensors}
    assert (chosen["text_embedding.0.weight"], chosen["blocks.0.ffn.2.weight"]) == ("F16", "Q6_K")


@pytest.mark.parametrize("metadata", MISSING)
def test_a_block_is_missing(tmp_path, metadata):
    prefix = "" if metadata.get("general.architecture") == "pig" else "model.diffusion_model."
    arrays = stored("flux_dev", prefix).items()
    kept = {name: each for name, each in arrays if "single_blocks.0." not in name}
    with pytest.raises(ModelError, match=r"single_blocks\.0\."):
        gguftools.quantize(write(tmp_path / "part.gguf", kept, metadata), "Q8_0", tmp_path / "out.gguf")


def test_other_parts_of_a_checkpoint_are_told(tmp_path):
    others = {"vae.decoder.conv_in.weight": np.zeros((8, 4, 3, 3), np.float16)}
    source = diffusion_models.write(tmp_path / "all.safetensors", "flux_dev", "model.diffusion_model.", others)
    report = gguftools.quantize(source, "Q8_0", tmp_path / "out.gguf", write=WriteOptions(manifest=True))
    assert report.warnings == ["other parts are not in the file: vae; `convert` writes them"]
    assert (tmp_path / "out.gguf.manifest.json").exists()


def test_quantized_weights_are_not_quantized_again(folder):
    source = write(folder / "pig-base.gguf", stored("flux_dev"), {"general.architecture": "pig"})
    quantized = gguftools.quantize(source, "Q8_0", folder / "pig-Q8_0.gguf", write=OVER).outputs[0].file
    with pytest.raises(OptionError, match="encoding it again as Q4_K loses quality"):
        gguftools.quantize(quantized, "Q4_K_M", folder / "again.gguf")


def test_few_bits_without_importance(folder):
    source = write(folder / "bare.gguf", stored("flux_dev"), {"general.architecture": "flux"})
    with pytest.raises(OptionError, match="IQ2_XXS needs an importance matrix") as caught:
        gguftools.quantize(source, "IQ2_XXS", folder / "few.gguf")
    assert "stable-diffusion.cpp measures one while it makes images" in caught.value.hint
    assert gguftools.quantize(source, "IQ3_S", folder / "some.gguf").outputs[0].nbytes


def test_options_of_text_models_have_nothing_to_do(folder):
    source = write(folder / "idle.gguf", stored("flux_dev"), {"general.architecture": "flux"})
    options = gguftools.QuantizeOptions(leave_output=True, output_type="Q8_0", token_embedding_type="Q8_0")
    report = gguftools.quantize(source, "Q4_K_M", folder / "options.gguf", options=options)
    assert report.warnings == [
        "there is no output.weight to leave as it is",
        "there is no output.weight: its format is not used",
        "there is no token_embd.weight: its format is not used",
    ]
    report = gguftools.quantize(source, "MXFP4_MOE", folder / "experts.gguf")
    assert report.warnings == ["MXFP4_MOE has no experts here to store in MXFP4: its weights are Q8_0"]
    report = gguftools.quantize(
        source, "Q8_0", folder / "output.gguf", options=gguftools.QuantizeOptions(output_type="F16")
    )
    assert report.warnings == ["there is no output.weight: its format is not used"]
