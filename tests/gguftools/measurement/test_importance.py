"""An importance matrix that we measure, against the reference's of the same model and text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.measurement.importance import imatrix
from gguftools.quantization.imatrix import read_imatrix

from ...conftest import ROOT


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("importance") / "model.gguf"
    return convert(ROOT / "examples" / "austen-4m", target, "f16").outputs[0].file


def test_the_same_columns_matter_as_much(model: Path, shared: Path, tmp_path: Path) -> None:
    theirs = read_imatrix(shared / "golden" / "austen-4m.imatrix.gguf")
    imatrix(model, shared / "models" / "calibration.txt", tmp_path / "ours.gguf")
    ours = read_imatrix(tmp_path / "ours.gguf")
    assert set(ours.entries) == set(theirs.entries)
    assert (ours.chunks, ours.chunk_size, ours.datasets) == (theirs.chunks, theirs.chunk_size, theirs.datasets)
    for name, entry in theirs.entries.items():
        assert ours.entries[name].mean() == pytest.approx(entry.mean(), rel=0.02), name


def test_it_serves_quantizing(model: Path, tmp_path: Path) -> None:
    imatrix(model, ROOT / "examples" / "persuasion.txt", tmp_path / "ours.dat", chunks=4)
    report = quantize(model, "Q2_K_S", tmp_path / "small.gguf", imatrix=tmp_path / "ours.dat")
    assert set(report.without_importance) == {"output.weight", "token_embd.weight"}


def test_the_head_on_request(model: Path, tmp_path: Path) -> None:
    text = ROOT / "examples" / "persuasion.txt"
    found = imatrix(model, text, tmp_path / "all.gguf", chunks=2, n_ctx=64, with_output=True)
    entry = found.entries["output.weight"]
    assert entry.counts.tolist() == [128.0]
    assert np.isfinite(entry.sums).all()
