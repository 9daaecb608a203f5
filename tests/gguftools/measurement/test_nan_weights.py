"""A NaN or infinite weight ends a measurement, with the tensor or layer where it began."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.io.gguf.reader import open_gguf

from ..command_line import EXAMPLE, TEXT, refused, run

# tensor -> what is named
PLACES = {
    "blk.2.ffn_norm.weight": "blk.2.ffn_norm.weight",
    "blk.1.ffn_down.weight": "blk.1",
    "blk.0.attn_v.weight": "blk.0",
    "token_embd.weight": "token_embd.weight",
    "output.weight": "output.weight",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    gguftools.convert(EXAMPLE, path, "f16")
    return path


def damaged(model: Path, target: Path, name: str, value: float) -> Path:
    """A copy in which the first value of each row of a tensor is another, by its bytes."""
    file = open_gguf(Path(shutil.copy(model, target)))
    tensor = file.tensors[name]
    kind = {"F32": "<f4", "F16": "<f2"}[tensor.format.name]
    offset = file.parts[0].offsets[name]
    values = np.memmap(target, kind, "r+", offset, shape=(tensor.rows, tensor.width))
    values[:, 0] = value
    values.flush()
    return target


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", PLACES)
def test_perplexity(name: str, value: float, model: Path, tmp_path: Path) -> None:
    bad = damaged(model, tmp_path / "bad.gguf", name, value)
    done = run("perplexity", bad, "-f", TEXT, "--chunks", "2", cwd=tmp_path)
    assert PLACES[name] in refused(done)
    assert "nan" not in done.stdout


@pytest.mark.parametrize("name", [name for name in PLACES if name != "output.weight"])
def test_imatrix(name: str, model: Path, tmp_path: Path) -> None:
    bad = damaged(model, tmp_path / "bad.gguf", name, np.nan)
    done = run("imatrix", bad, "-f", TEXT, "--chunks", "2", "-o", "m.gguf", cwd=tmp_path)
    assert PLACES[name] in refused(done)
    assert not (tmp_path / "m.gguf").exists()
