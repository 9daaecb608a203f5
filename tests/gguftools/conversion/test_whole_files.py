"""Whole files, keys and all, as llama.cpp's quantizer (build 11434) writes them: digests recorded from it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.cli.arguments import parse_override
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.io.gguf.reader import open_gguf
from gguftools.quantization.options import QuantizeOptions

from ...conftest import DATA, ROOT
from ..command_line import EXAMPLE
from ..tiny_models import metadata_of, write_model

# "RECIPE and its arguments" → sha256 of `llama-quantize ARGUMENTS model-f16.gguf OUTPUT RECIPE`
RECORDED: dict[str, str] = json.loads((DATA / "golden" / "whole-files.json").read_text())
MATRIX = "--imatrix austen-4m.imatrix.gguf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    convert(ROOT / "examples" / "austen-4m", path / "model-f16.gguf", "F16")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("recipe", [name for name in RECORDED if " " not in name])
def test_plain(recipe: str, folder: Path, tmp_path: Path) -> None:
    quantize(folder / "model-f16.gguf", recipe, tmp_path / "out.gguf")
    assert digest(tmp_path / "out.gguf") == RECORDED[recipe]


@pytest.mark.parametrize("recipe", [name.split()[0] for name in RECORDED if MATRIX in name])
def test_with_importance(
    recipe: str, folder: Path, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(shared / "golden" / "austen-4m.imatrix.gguf", ".")
    quantize(folder / "model-f16.gguf", recipe, "out.gguf", imatrix="austen-4m.imatrix.gguf")
    assert digest(Path("out.gguf")) == RECORDED[f"{recipe} {MATRIX}"]


def test_overrides_pruning_and_types_of_tensors(folder: Path, tmp_path: Path) -> None:
    overrides = ["llama.context_length=int:777", "general.name=str:abc"]
    options = QuantizeOptions(output_type="Q8_0", token_embedding_type="Q4_0")
    source = folder / "model-f16.gguf"
    quantize(
        source, "Q4_K_M", tmp_path / "a.gguf", options=QuantizeOptions(override=dict(map(parse_override, overrides)))
    )
    quantize(source, "Q8_0", tmp_path / "b.gguf", options=QuantizeOptions(prune_layers=[1]))
    quantize(source, "Q4_K_M", tmp_path / "c.gguf", options=options)
    wanted = [each for name, each in RECORDED.items() if " --" in name and MATRIX not in name]
    assert [digest(tmp_path / f"{name}.gguf") for name in "abc"] == wanted


def test_outer_dimensions_of_one_are_left_out(tmp_path: Path) -> None:
    tensors = {"blk.0.ssm_norm.weight": np.ones((1, 128)), "blk.0.ffn_up_exps.weight": np.ones((1, 64, 32))}
    write_model(tmp_path / "model.gguf", metadata_of({"general.architecture": "mamba2"}), tensors)
    quantize(tmp_path / "model.gguf", "Q8_0", tmp_path / "out.gguf")
    found = {name: (each.shape, each.format.name) for name, each in open_gguf(tmp_path / "out.gguf").tensors.items()}
    assert found == {"blk.0.ffn_up_exps.weight": ((64, 32), "Q8_0"), "blk.0.ssm_norm.weight": ((128,), "F32")}


@pytest.mark.parametrize(
    ("recipe", "digest"),  # sha256 of what llama-quantize (build 11434) makes of the example in F16
    [
        ("Q8_0", "abde005d3e501cc7ad06b10f7a4158ad7d2a7eb704ae5fac8b79a78f4cc4ac67"),
        ("Q4_K_M", "c8e80eb3ffc64977cd6a48109caba4a97797252f287fcc99a11c44c89b2324c9"),
    ],
)
def test_whole_files_are_the_same(recipe: str, digest: str, tmp_path: Path) -> None:
    gguftools.convert(EXAMPLE, tmp_path / "model.gguf", "F16")
    gguftools.quantize(tmp_path / "model.gguf", recipe, tmp_path / "out.gguf")
    assert hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest() == digest
