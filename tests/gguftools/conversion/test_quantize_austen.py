"""A trained model through every recipe: each tensor as the reference wrote it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.io.gguf.reader import open_gguf
from gguftools.writing.options import WriteOptions
from quants.errors import OptionError

from ...conftest import ROOT


@pytest.fixture(scope="module")
def golden(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "golden" / "austen-4m.json").read_text())
    return found


@pytest.fixture(scope="module")
def half(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("austen") / "austen-4m-f16.gguf"
    convert(ROOT / "examples" / "austen-4m", path, "F16")
    return path


def written(path: Path) -> dict[str, list[Any]]:
    return {
        name: [tensor.format.name, list(tensor.shape), hashlib.sha256(tensor.raw().tobytes()).hexdigest()]
        for name, tensor in open_gguf(path).tensors.items()
    }


@pytest.mark.parametrize("kind", ["quantize", "quantize_with_imatrix"])
def test_every_recipe_as_recorded(kind: str, golden: dict[str, Any], half: Path, shared: Path, tmp_path: Path) -> None:
    matrix = shared / "golden" / "austen-4m.imatrix.gguf" if kind == "quantize_with_imatrix" else None
    possible = [recipe for recipe, recorded in golden[kind].items() if "error" not in recorded]
    assert len(possible) == (34 if matrix else 25)
    report = quantize(half, possible, tmp_path, imatrix=matrix)
    for output in report.outputs:
        recorded = golden[kind][output.recipe]
        assert written(output.file) == recorded["tensors"], output.recipe
        assert output.nbytes == recorded["bytes"], output.recipe
        assert open_gguf(output.file).metadata["general.file_type"] == recorded["file_type"]
    for recipe in golden[kind].keys() - set(possible):
        with pytest.raises(OptionError, match="needs an importance matrix"):
            quantize(half, recipe, tmp_path, imatrix=matrix)


def test_straight_from_the_checkpoint(half: Path, shared: Path, tmp_path: Path) -> None:
    """A checkpoint in float32 or bfloat16 loses nothing on the way; through a float16 file it may."""
    convert(ROOT / "examples" / "austen-4m", tmp_path / "whole.gguf", "BF16")
    quantize(tmp_path / "whole.gguf", "Q4_K_M", tmp_path / "two-steps.gguf")
    quantize(ROOT / "examples" / "austen-4m", "Q4_K_M", tmp_path / "one-step.gguf")
    assert (tmp_path / "one-step.gguf").read_bytes() == (tmp_path / "two-steps.gguf").read_bytes()
    named = quantize(ROOT / "examples" / "austen-4m", "Q4_K_M", tmp_path, write=WriteOptions(dry_run=True))
    assert named.outputs[0].file == tmp_path / "austen-4m-Q4_K_M.gguf"
