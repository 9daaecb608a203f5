"""Inspecting, editing and cutting files of image and video models."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import gguf
import pytest

import gguftools
from archs.diffusion.detection import all_families
from archs.diffusion.spec import READERS
from quants.errors import GgufToolsError, ModelError, OptionError

from ... import diffusion_models
from ..command_line import refused, typed

TITLES = tuple(READERS.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a Flux and a Wan, in full and quantized."""
    folder = tmp_path_factory.mktemp("images")
    for name, model in (("flux", "flux_schnell"), ("wan", "wan_t2v")):
        checkpoint = diffusion_models.write(folder / f"{name}.safetensors", model)
        gguftools.convert(checkpoint, folder / f"{name}.gguf")
        gguftools.convert(checkpoint, folder / f"{name}-q8.gguf", outtype="q8_0")
    return folder


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the command line in the folder."""
    monkeypatch.chdir(folder)


def test_validate_says_who_loads_a_file(folder: Path) -> None:
    report = gguftools.validate(folder / "wan-q8.gguf")
    assert report.ok
    assert report.problems == ()
    assert {each.reader: each.loads for each in report.readers} == {"comfyui": True, "sdcpp": True, "diffusers": False}
    done = typed("validate", "wan-q8.gguf")
    assert done.returncode == 0
    assert "ComfyUI-GGUF loads it" in done.stdout
    assert "diffusers does not load it: patch_embedding.weight is a convolution over time" in done.stdout


def test_validate_by_the_rules_of_a_reader(folder: Path) -> None:
    report = gguftools.validate(folder / "wan-q8.gguf", reader="diffusers")
    assert not report.ok
    assert [each.reader for each in report.readers] == ["diffusers"]
    assert "five dimensions" in report.problems[0].remedy
    done = typed("validate", "wan-q8.gguf", "--for", "diffusers")
    assert done.returncode == 1
    assert "what to do" in done.stdout
    printed = json.loads(typed("validate", "flux-q8.gguf", "--for", "ComfyUI-GGUF", "--json").stdout)
    assert printed["verdict"] == "ok"
    assert printed["readers"] == [{"reader": "comfyui", "title": "ComfyUI-GGUF", "loads": True, "problems": []}]
    with pytest.raises(OptionError, match="reader is 'forge'"):
        gguftools.validate(folder / "wan.gguf", reader="forge")  # type: ignore[arg-type]


def test_validate_a_text_encoder_by_the_rules_of_a_reader(folder: Path) -> None:
    gguftools.Model({"general.architecture": "qwen2"}, {}).save(folder / "text.gguf")
    report = gguftools.validate(folder / "text.gguf", reader="comfyui")
    assert "as text encoders it takes" in next(each.message for each in report.problems if each.severity == "error")
    assert [each.loads for each in report.readers] == [False]


def test_show_names_the_model_and_its_readers(folder: Path) -> None:
    printed = typed("show", "flux-q8.gguf").stdout
    assert re.search(r"^model +Flux\.1$", printed, re.MULTILINE)
    assert re.search(rf"^read by +{', '.join(TITLES)}$", printed, re.MULTILINE)
    assert "comfy.gguf.orig_shape.patch_embedding.weight" in typed("show", "wan.gguf").stdout
    with gguftools.open(folder / "flux.gguf") as model:
        model.metadata["general.architecture"] = "pony"
        model.save(folder / "pony.gguf")
    assert re.search(r"^read by +stable-diffusion.cpp, diffusers$", typed("show", "pony.gguf").stdout, re.M)


def test_diff_hash_and_identification() -> None:
    done = typed("diff", "wan.gguf", "wan-q8.gguf", "--errors")
    assert done.returncode in (0, 1)
    assert "SQNR" in done.stdout
    assert "the formats of Q8_0" in typed("diff", "flux.gguf", "flux-q8.gguf", "--identify").stdout
    assert typed("hash", "wan-q8.gguf").returncode == 0


def test_split_and_merge_give_the_same_bytes(folder: Path) -> None:
    whole = folder / "wan-q8.gguf"
    cut = gguftools.split(whole, folder / "cut", max_tensors=20)
    assert [warning for warning in cut.warnings if "open one file" in warning]
    report = gguftools.validate(cut.shards[0].path)
    assert not any(each.loads for each in report.readers)
    assert gguftools.show(cut.shards[0].path).as_dict()["summary"]["read_by"] == []
    assert "none of the known programs" in typed("show", cut.shards[0].path).stdout
    gguftools.merge(cut.shards[0].path, folder / "merged.gguf")
    assert (folder / "merged.gguf").read_bytes() == whole.read_bytes()


def test_the_tag_may_change(folder: Path) -> None:
    path = folder / "edited.gguf"
    path.write_bytes((folder / "wan-q8.gguf").read_bytes())
    done = typed("set-metadata", path, "general.architecture=flux", "general.name=mine")
    assert done.returncode == 0
    assert "`gguftools validate` does" in done.stderr
    with gguftools.open(path) as model:
        assert list(model.metadata["comfy.gguf.orig_shape.patch_embedding.weight"]) == [256, 16, 1, 2, 2]
    report = gguftools.validate(path)
    assert "set-metadata FILE general.architecture=wan" in report.problems[0].remedy
    assert typed("set-metadata", path, "general.architecture=wan").returncode == 0
    assert gguftools.validate(path).problems == ()


RUNNING: Mapping[str, str] = {
    "chat": "chat FILE",
    "check": "check FILE",
    "divergence": "divergence FILE FILE -f TEXT",
    "draft-check": "draft-check FILE OTHER -f TEXT",
    "embed": "embed FILE -p word",
    "export": "export FILE -o out",
    "fit": "fit FILE",
    "generate": "generate FILE -p word",
    "graph": "graph FILE",
    "imatrix": "imatrix FILE -f TEXT -o im.gguf",
    "perplexity": "perplexity FILE -f TEXT",
    "tokenize": "tokenize FILE -p word",
}


@pytest.mark.parametrize("command", RUNNING)
def test_what_runs_models_refuses_them(folder: Path, command: str) -> None:
    (folder / "text.txt").write_text("It is a truth universally acknowledged. " * 200)
    names = {"FILE": "flux.gguf", "OTHER": "wan.gguf", "TEXT": "text.txt"}
    words = [names.get(word, word) for word in RUNNING[command].split()]
    refused(typed(*words), "is 'flux': an image or video model, which gguftools does not run or export")


def test_the_library_refuses_them(folder: Path) -> None:
    with gguftools.open(folder / "flux.gguf") as model:
        for call in (lambda: model.tokenizer, lambda: model.generate("a"), lambda: model.embed("a"), model.chat):
            with pytest.raises(ModelError, match="an image or video model"):
                call()


@pytest.mark.parametrize("model", ["flux_dev", "sd3_medium", "wan_vace", "z_image", "ltx2"])
def test_gguf_py_reads_published_shapes_and_texts(folder: Path, model: str) -> None:
    """As ComfyUI-GGUF does: by gguf-py, with the shapes of its keys, which must be arrays of INT32."""
    checkpoint = diffusion_models.write(folder / f"{model}.safetensors", model)
    gguftools.convert(checkpoint, folder / f"{model}.gguf", "q8_0")
    reader = gguf.GGUFReader(folder / f"{model}.gguf")
    found = {}
    for tensor in reader.tensors:
        found[tensor.name] = tuple(map(int, reversed(tensor.shape)))
        if key := reader.get_field(f"comfy.gguf.orig_shape.{tensor.name}"):
            assert key.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]
            found[tensor.name] = tuple(int(key.parts[part][0]) for part in key.data)
    assert found == {name: shape for name, (shape, _) in diffusion_models.shapes(model).items()}
    for name, text in diffusion_models.MODELS[model].header.items():
        assert reader.fields[name].contents() == text


def test_damaged_keys_are_no_tracebacks(folder: Path) -> None:
    key = "comfy.gguf.orig_shape.patch_embedding.weight"
    with gguftools.open(folder / "wan.gguf") as model:
        for value in (["a", "b"], "text", 7, [2**40, 2**40, 16], [-1, 5]):
            if key in model.metadata:
                del model.metadata[key]
            model.metadata[key] = value
            model.save(folder / "damaged.gguf", overwrite=True)
            report = gguftools.validate(folder / "damaged.gguf", reader="comfyui")
            assert any(each.where == key and each.severity == "error" for each in report.problems)
            for command in ("show", "hash"):
                assert typed(command, "damaged.gguf").returncode == 0
            with contextlib.suppress(GgufToolsError):
                gguftools.quantize(folder / "damaged.gguf", "Q8_0", folder / f"{len(str(value))}.gguf")


def test_architectures_lists_their_families() -> None:
    images = [each for each in gguftools.architectures() if each.image]
    assert sorted(each.title for each in images) == sorted(family.title for family in all_families())
    assert all(set(each.readers) <= set(TITLES) and not each.exports for each in images)
    printed = typed("architectures").stdout
    assert "Image and video models" in printed
    assert re.search(r"^Flux\.1 +flux +ComfyUI-GGUF", printed, re.MULTILINE)
