"""What each program that loads image and video models finds wrong with a file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from archs.diffusion.blocks import missing_block, unlike_neighbours
from archs.diffusion.detection import all_families
from archs.diffusion.image_file import ERROR, WARNING, ImageFile, family_faults, image_file
from archs.diffusion.readers import CLASSES, IMAGE_TAGS, Verdict, readers_of, text_encoder_faults, verdict, verdicts
from archs.diffusion.spec import READERS, Reader
from archs.metadata import Metadata, Value, ValueType
from archs.plans.diffusion import plan_diffusion
from quants import Tensor, format_named, from_array

from ... import diffusion_models
from ...conftest import DATA

Tensors = Mapping[str, Tensor]
PATCHES = "patch_embedding.weight"
SHAPE = f"comfy.gguf.orig_shape.{PATCHES}"


def converted(model: str = "flux_dev", reader: Reader | None = None) -> tuple[Metadata, dict[str, Tensor]]:
    """Return metadata and tensors of the file that a checkpoint becomes."""
    tensors = {name: from_array(name, values) for name, values in diffusion_models.arrays(model).items()}
    plan = plan_diffusion(tensors, diffusion_models.MODELS[model].header, model, "AUTO", reader)
    return plan.metadata, dict(plan.tensors)


def in_format(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor as if it were stored in another format."""
    return replace(tensor, format=format_named(name))


def unread(start: int, stop: int) -> NDArray[np.uint8]:
    raise AssertionError("read")


def looked_at(reader: Reader, metadata: Metadata, tensors: Tensors, files: int = 1) -> Verdict:
    file = image_file(metadata, tensors, files)
    assert file is not None
    return verdict(reader, file)


def errors(reader: Reader, metadata: Metadata, tensors: Tensors, files: int = 1) -> str:
    """Return what prevents a program from loading a file."""
    faults = looked_at(reader, metadata, tensors, files).faults
    return "\n".join(f"{fault.where} {fault.problem}; {fault.remedy}" for fault in faults if fault.severity == ERROR)


@pytest.mark.parametrize("model", diffusion_models.MODELS)
def test_every_family_loads_where_it_is_read(model: str) -> None:
    file = image_file(*converted(model))
    assert file is not None
    assert file.family is not None
    assert list(family_faults(file)) == []
    readers = readers_of(file.family)
    assert {each.reader for each in verdicts(file) if each.loads} | {"diffusers"} == {*readers, "diffusers"}
    for reader in readers:
        assert errors(reader, *converted(model, reader)) == ""


@pytest.mark.parametrize("model", diffusion_models.MODELS)
def test_dimensions_that_matter_are_known(model: str) -> None:
    shapes = {name: shape for name, (shape, _) in diffusion_models.shapes(model).items()}
    metadata, tensors = converted(model)
    for name, tensor in tensors.items():
        is_bare = not name.endswith((".weight", ".bias"))
        if is_bare and len(tensor.shape) > 1 and tensor.shape[0] == 1:
            lost = {**tensors, name: replace(tensor, shape=tensor.shape[1:])}
            assert f"{name} has" in errors("comfyui", metadata, lost)
    for name, shape in shapes.items():
        if len(shape) > 4:
            del metadata[f"comfy.gguf.orig_shape.{name}"]
            assert f"{name} is a convolution over time" in errors("comfyui", metadata, tensors)


def test_a_file_for_diffusers_keeps_five_dimensions() -> None:
    metadata, tensors = converted("wan_t2v", "diffusers")
    assert looked_at("diffusers", metadata, tensors).loads
    assert looked_at("sdcpp", metadata, tensors).loads
    assert "convolution over time, stored as 4096×1×2×2" in errors("diffusers", *converted("wan_t2v"))


def test_comfyui_takes_its_own_tags() -> None:
    metadata, tensors = converted("flux_dev")
    metadata["general.architecture"] = "flux2"
    assert "it takes aura, cosmos, flux" in (text := errors("comfyui", metadata, tensors))
    assert "set-metadata FILE general.architecture=flux" in text
    del metadata["general.architecture"]
    assert errors("comfyui", metadata, tensors) == ""  # it guesses by names
    metadata.set("general.architecture", 7, ValueType.UINT32)
    assert "is no text" in errors("comfyui", metadata, tensors)
    assert {family.tag for family in all_families() if "comfyui" not in family.refused} <= IMAGE_TAGS


def test_a_tag_of_another_family_is_a_warning() -> None:
    metadata, tensors = converted("flux_dev")
    metadata["general.architecture"] = "wan"
    file = image_file(metadata, tensors)
    assert file is not None
    faults = list(family_faults(file))
    assert [fault.severity for fault in faults] == [WARNING]
    assert "'wan', and the tensors are those of Flux.1" in faults[0].problem
    assert looked_at("comfyui", metadata, tensors).loads


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Value([256, 16, 1, 2, 2], ValueType.ARRAY, ValueType.INT64), "reads arrays of INT32 alone"),
        (Value([256, 16, 2, 2, 2], ValueType.ARRAY, ValueType.INT32), "the tensor has 16,384 values"),
        (Value([0, 16], ValueType.ARRAY, ValueType.INT32), "the tensor has 16,384 values"),
        (Value([], ValueType.ARRAY, ValueType.INT32), "the tensor has 16,384 values"),
        (Value(3, ValueType.UINT32), "reads arrays of INT32 alone"),
        (Value(["16", "x"], ValueType.ARRAY, ValueType.STRING), "reads arrays of INT32 alone"),
    ],
)
def test_wrong_published_shapes(value: Value, problem: str) -> None:
    metadata, tensors = converted("wan_t2v")
    metadata.set(SHAPE, value.data, value.type, value.element)
    file = image_file(metadata, tensors)
    assert file is not None
    assert problem in next(fault.problem for fault in family_faults(file) if fault.where == SHAPE)
    assert PATCHES in errors("comfyui", metadata, tensors)


def test_a_published_shape_of_no_tensor_is_a_warning() -> None:
    metadata, tensors = converted("wan_t2v")
    metadata.set(f"{SHAPE}.x", [1], ValueType.ARRAY, ValueType.INT32)
    file = image_file(metadata, tensors)
    assert file is not None
    assert [fault.severity for fault in family_faults(file)] == [WARNING]


def test_a_missing_or_folded_patch_embedding() -> None:
    metadata, tensors = converted("wan_t2v")
    without = {name: each for name, each in tensors.items() if name != PATCHES}
    assert "left it out, for a second step" in errors("comfyui", metadata, without)
    del metadata[SHAPE]
    assert "there is no key comfy.gguf.orig_shape" in errors("comfyui", metadata, tensors)
    assert errors("sdcpp", metadata, tensors) == ""


def test_lost_leading_dimensions() -> None:
    metadata, tensors = converted("wan_t2v")
    for name, each in tensors.items():
        if name.endswith("modulation"):
            tensors[name] = replace(each, shape=each.shape[1:])
    for reader in ("comfyui", "diffusers"):
        assert "head.modulation has 2 dimensions; 3 were published" in errors(reader, metadata, tensors)
        assert "(head.modulation and 2 more)" in errors(reader, metadata, tensors)
    assert errors("sdcpp", metadata, tensors) == ""


@pytest.mark.parametrize("form", ["BF16", "Q8_0"])
@pytest.mark.parametrize("name", ["double_blocks.0.img_attn.norm.query_norm.scale", PATCHES])
def test_comfyui_reads_packed_parameters_as_bytes(name: str, form: str) -> None:
    metadata, tensors = converted("wan_t2v" if name == PATCHES else "flux_dev")
    tensors[name] = in_format(tensors[name], form)
    assert "is read as its bytes" in errors("comfyui", metadata, tensors)
    assert "only weights of linear layers are decoded" in errors("diffusers", metadata, tensors)


def test_formats_without_a_decoder() -> None:
    metadata, tensors = converted("flux_dev")
    name = "single_blocks.0.linear1.weight"
    slow = {**tensors, name: in_format(tensors[name], "IQ3_S")}
    found = looked_at("comfyui", metadata, slow)
    assert found.loads
    assert [fault.severity for fault in found.faults] == [WARNING]
    assert "decoded by numpy at every step" in found.faults[0].problem
    assert "is IQ3_S, which its loader refuses" in errors("diffusers", metadata, slow)
    assert errors("sdcpp", metadata, slow) == ""
    newest = {**tensors, name: in_format(tensors[name], "Q2_0")}
    assert "which gguf-py cannot decode" in errors("comfyui", metadata, newest)
    assert "which its ggml does not have" in errors("sdcpp", metadata, newest)


def test_slow_formats_ignore_published_shapes() -> None:
    metadata, tensors = converted("flux_dev")
    name = "single_blocks.0.linear1.weight"
    metadata.set(f"comfy.gguf.orig_shape.{name}", [1792, 256], ValueType.ARRAY, ValueType.INT32)
    tensors[name] = in_format(tensors[name], "IQ2_S")
    assert "ignores the published shape" in errors("comfyui", metadata, tensors)


def test_rearranged_rows_are_for_comfyui_alone() -> None:
    metadata, tensors = converted("flux_dev")
    name = "img_in.weight"
    metadata.set(f"comfy.gguf.orig_shape.{name}", [256, 64], ValueType.ARRAY, ValueType.INT32)
    tensors[name] = replace(tensors[name], shape=(64, 256))
    assert errors("comfyui", metadata, tensors) == ""
    assert "only ComfyUI-GGUF undoes" in errors("sdcpp", metadata, tensors)
    assert "it ignores the key" in errors("diffusers", metadata, tensors)


def test_prefixes() -> None:
    metadata, tensors = converted("flux_dev")
    whole = {f"model.diffusion_model.{name}": each for name, each in tensors.items()}
    file = image_file(metadata, {**whole, "vae.decoder.conv_in.bias": tensors["img_in.bias"]})
    assert file is not None
    assert file.family is not None
    assert {each.reader for each in verdicts(file) if each.loads} == set(READERS)
    net = {f"net.{name}": each for name, each in tensors.items()}
    assert "have the prefix 'net.'" in errors("sdcpp", metadata, net)
    assert any("have the prefix 'net.'" in fault.problem for fault in looked_at("comfyui", metadata, net).faults)


def test_names_of_diffusers() -> None:
    """A file in diffusers' layout is for diffusers alone."""
    record = json.loads(gzip.decompress((DATA / "diffusers_layouts.json.gz").read_bytes()))["flux"]["tensors"]
    tensors = {name: from_array(name, np.zeros(shape, np.float32)) for name, (shape, _, _) in record.items()}
    metadata = Metadata({"general.architecture": "flux"})
    assert "the names are those of diffusers' layout" in errors("comfyui", metadata, tensors)
    assert looked_at("diffusers", metadata, tensors).loads
    assert any("which it renames in part" in fault.problem for fault in looked_at("sdcpp", metadata, tensors).faults)


def test_names_beyond_ggml() -> None:
    metadata, tensors = converted("flux_dev")
    long = "double_blocks.0." + "x" * 150
    notes = looked_at("sdcpp", metadata, {**tensors, long: tensors["img_in.bias"]})
    assert notes.loads
    assert f"has {len(long)} characters" in notes.faults[-1].problem
    folded, video = converted("wan_t2v")
    warned = looked_at("sdcpp", folded, {**video, long: video["head.head.bias"]})
    assert warned.loads
    assert "do not load a file with it and an array" in warned.faults[-1].problem


def test_split_files_and_scales() -> None:
    metadata, tensors = converted("flux_dev")
    for reader in READERS:
        assert "files are 3, and it opens one; `gguftools merge`" in errors(reader, metadata, tensors, 3)
    tensors["img_in.scale_weight"] = tensors["img_in.bias"]
    file = image_file(metadata, tensors)
    assert file is not None
    assert "weights were not multiplied" in next(family_faults(file)).problem


def test_kept_tensors_and_gaps() -> None:
    metadata, tensors = converted("flux_dev")
    tensors["img_in.weight"] = in_format(tensors["img_in.weight"], "Q8_0")
    tensors["double_blocks.9.x"] = tensors["img_in.bias"]
    file = image_file(metadata, tensors)
    assert file is not None
    gap, packed = family_faults(file)
    assert (gap.severity, gap.where) == (ERROR, "double_blocks.1")
    assert (packed.severity, packed.where) == (WARNING, "img_in.weight")
    assert missing_block(["a.blocks.1.x", "a.blocks.0.x", "norms.3.x"]) is None
    assert missing_block(["a.blocks.0.x", "a.blocks.999999999.x"]) == ("a.blocks.1", 999999999)
    assert missing_block([f"a.blocks.{'9' * 5000}.x"]) is None  # no number of a block


def test_blocks_unlike_their_neighbours() -> None:
    shapes = {f"a.blocks.{i}.{name}": (4, 8) for i in range(4) for name in ("x", "y")}
    assert not unlike_neighbours(shapes)
    changed = {**shapes, "a.blocks.1.x": (4, 4), "a.blocks.0.x": (2, 2), "a.blocks.3.z": (1,)}
    assert not unlike_neighbours(changed)  # blocks at the ends may differ, and so may those on both sides
    lacking = {name: shape for name, shape in shapes.items() if name != "a.blocks.2.y"}
    assert unlike_neighbours(lacking) == {"a.blocks.2.y": "is missing, and is in blocks 1 and 3"}
    wrong = {**shapes, "a.blocks.1.x": (4, 4)}
    assert unlike_neighbours(wrong) == {"a.blocks.1.x": "has shape [4, 4], and [4, 8] in blocks 0 and 2"}


@pytest.mark.parametrize("model", diffusion_models.MODELS)
def test_blocks_of_models_are_alike(model: str) -> None:
    shapes = {name: shape for name, (shape, _) in diffusion_models.shapes(model).items()}
    assert not unlike_neighbours(shapes)


def test_a_damaged_block_is_named() -> None:
    metadata, tensors = converted("flux_dev")
    for i in range(2, 4):
        tensors |= {
            name.replace(".0.", f".{i}.", 1): each
            for name, each in list(tensors.items())
            if name.startswith("single_blocks.0.")
        }
    del tensors["single_blocks.2.linear2.weight"]
    file = image_file(metadata, tensors)
    assert file is not None
    assert [(each.severity, each.where) for each in family_faults(file)] == [
        (WARNING, "single_blocks.2.linear2.weight")
    ]


def test_other_files_are_no_image_models() -> None:
    tensors = {"blk.0.attn_q.weight": from_array("blk.0.attn_q.weight", np.ones((4, 4), np.float32))}
    assert image_file(Metadata({"general.architecture": "llama"}), tensors) is None
    unknown = image_file(Metadata({"general.architecture": "flux"}), tensors)
    assert unknown == ImageFile(unknown.metadata, tensors) if unknown else False
    assert unknown is not None
    assert "this seems to be a language model" in next(family_faults(unknown)).problem


def test_text_encoders() -> None:
    def found(reader: Reader, **keys: object) -> str:
        metadata = Metadata({name.replace("__", "."): value for name, value in keys.items()})
        embedding = Tensor("token_embd.weight", (256384, 4096), format_named("F16"), unread)
        tensors = {embedding.name: embedding}
        return "\n".join(fault.problem for fault in text_encoder_faults(reader, metadata, tensors))

    assert "the vocabulary is made of this file (tokenizer.ggml.tokens and 6 more)" in found(
        "comfyui", general__architecture="t5"
    )
    assert found("comfyui", general__architecture="qwen3") == ""
    assert "it takes gemma3, llama" in found("comfyui", general__architecture="qwen2")
    assert "which gives noise" in found("comfyui", general__architecture="llama", llama__attention__head_count=16)
    assert found("comfyui", general__architecture="clip", general__type="mmproj") == ""
    assert found("sdcpp", general__architecture="qwen2") == ""
    assert "with transformers" in found("diffusers", general__architecture="t5")


def test_readers_of_families() -> None:
    for family in all_families():
        readers = readers_of(family)
        assert "diffusers" not in readers or family.name in CLASSES
        assert not set(readers) & set(family.refused)
    flux = next(family for family in all_families() if family.name == "flux")
    refused = replace(flux, refused={"sdcpp": "too new"})
    assert readers_of(refused) == ("comfyui", "diffusers")
