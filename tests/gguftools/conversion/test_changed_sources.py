"""A source that changes while it is converted: two versions of a model are never mixed in one file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from gguftools.conversion.convert import convert
from gguftools.conversion.options import ConvertOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError

from ...conftest import ROOT
from ..image_checkpoints import WIDTH, pipeline
from .test_adapters import adapter

__all__ = ["adapter"]
MODEL = ROOT / "examples" / "austen-4m"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def converting(source: Path, output: Path, change: Callable[[], object], outtype: str = "f16", **given: Any) -> None:
    """Convert, and make a change once rows are being written."""
    changes = iter([change])

    def progress(done: int, total: int, tensor: str) -> None:
        if done:
            next(changes, lambda: None)()

    convert(source, output, outtype, write=WriteOptions(threads=1, progress=progress), **given)
    assert next(changes, None) is None


def replaced(path: Path) -> None:
    """Put a copy in the place of a file, as downloads do."""
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.replace(path)


@pytest.mark.parametrize("outtype", ["f16", "q4_0", "exact"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "README.md", "model.safetensors"])
def test_a_file_that_was_read(folder: Path, tmp_path: Path, name: str, outtype: str) -> None:
    with pytest.raises(FileError, match=f"{name} was changed while it was read") as caught:
        converting(folder, tmp_path / "out.gguf", lambda: replaced(folder / name), outtype)
    assert caught.value.hint == "run it again"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_whole_folder(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))

    def swap() -> None:
        folder.rename(tmp_path / "old")
        other.rename(folder)

    with pytest.raises(FileError, match="was changed while it was read"):
        converting(folder, tmp_path / "out.gguf", swap)
    assert not (tmp_path / "out.gguf").exists()


def test_files_that_were_not_read_may_change(folder: Path, tmp_path: Path) -> None:
    log = folder / "log.txt"
    log.write_text("before")
    converting(folder, tmp_path / "out.gguf", lambda: log.write_text("after"))
    assert (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter(folder: Path, adapter: Path, tmp_path: Path, name: str) -> None:
    options = ConvertOptions(merge_lora=[adapter])
    with pytest.raises(FileError, match=f"{name} was changed while it was read"):
        converting(folder, tmp_path / "out.gguf", lambda: os.utime(adapter / name), options=options)
    with pytest.raises(FileError, match=f"{name} was changed while it was read"):
        converting(
            folder,
            tmp_path / "out.gguf",
            lambda: os.utime(adapter / name),
            part="lora",
            options=ConvertOptions(lora=adapter),
        )
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("part", ["model", "all"])
@pytest.mark.parametrize("outtype", ["f16", "q4_k_m"])
@pytest.mark.parametrize("name", ["transformer", "lora"])
def test_an_image_model(tmp_path: Path, outtype: str, name: str, part: Any) -> None:
    folder = pipeline(tmp_path / "FLUX")
    stem = "lora_unet_img_in.lora"
    lora = {f"{stem}_down.weight": np.ones((2, 64), "f4"), f"{stem}_up.weight": np.ones((WIDTH, 2), "f4")}
    save_file(lora, tmp_path / "lora.safetensors")
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    changed = weights if name == "transformer" else tmp_path / "lora.safetensors"
    options = ConvertOptions(merge_lora=[tmp_path / "lora.safetensors"])
    with pytest.raises(FileError, match=f"{changed.name} was changed while it was read"):
        converting(folder, tmp_path / "out.gguf", lambda: replaced(changed), outtype, options=options, part=part)
    left = {path.name for path in tmp_path.iterdir() if ".partial" not in path.name}
    assert left == {"FLUX", "lora.safetensors"}


@pytest.mark.parametrize("name", ["vae", "text_encoder", "text_encoder_2", "tokenizer_2"])
def test_other_parts_of_an_image_model(tmp_path: Path, name: str) -> None:
    folder = pipeline(tmp_path / "FLUX")
    changed = next((folder / name).glob("*.safetensors"), folder / name / "spiece.model")
    with pytest.raises(FileError, match=f"{changed.name} was changed while it was read"):
        converting(folder, tmp_path / "out.gguf", lambda: replaced(changed), "f16", part="all")
    assert [path.name for path in tmp_path.iterdir()] == ["FLUX"]
