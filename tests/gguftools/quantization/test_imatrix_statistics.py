"""Figures of importance matrices, against those that llama-imatrix stored in a file beside the sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gguftools.io.gguf.reader import open_gguf
from gguftools.quantization.imatrix import ImportanceMatrix, read_imatrix, write_imatrix
from gguftools.quantization.imatrix_entry import Entry
from gguftools.quantization.imatrix_statistics import statistics
from tests.conftest import DATA

THEIRS = DATA / "golden" / "austen.imatrix.gguf"  # of persuasion.txt: --chunk 1 --chunks 3 -c 128 --process-output
PRINTED = (  # sum, gain, L2 distance, cosine, Pearson, covariance of each layer
    (3744.3420, None, None, None, None, None),
    (1755.7198, 0.68, 21.4717, 0.0397, 0.0395, 0.0040),
    (1904.0824, 1.04, 10.0170, 0.7308, 0.7271, 0.0579),
    (2634.2615, 1.18, 11.7415, 0.6681, 0.6629, 0.0582),
)


def test_figures_of_the_reference() -> None:
    stored, found = open_gguf(THEIRS).tensors, statistics(read_imatrix(THEIRS).entries).tensors
    assert {f"{name}.stats" for name in found} == {name for name in stored if name.endswith(".stats")}
    for name, figures in found.items():
        theirs = stored[f"{name}.stats"].float32()
        np.testing.assert_allclose(figures.as_stored(), theirs, rtol=3e-6, atol=3e-6, err_msg=name)


def test_a_file_of_the_reference_is_written_as_it_is(tmp_path: Path) -> None:
    write_imatrix(read_imatrix(THEIRS), tmp_path / "again.gguf")
    theirs, again = open_gguf(THEIRS), open_gguf(tmp_path / "again.gguf")
    assert THEIRS.stat().st_size == (tmp_path / "again.gguf").stat().st_size
    assert {key: str(theirs.metadata[key]) for key in theirs.metadata} == {
        key: str(again.metadata[key]) for key in again.metadata
    }
    assert list(theirs.tensors) == list(again.tensors)
    for name, tensor in theirs.tensors.items():
        assert again.tensors[name].shape == tensor.shape
        if not name.endswith(".stats"):
            assert np.array_equal(again.tensors[name].float32(), tensor.float32()), name


def test_layers_together() -> None:
    """As the reference prints them: `llama-imatrix --in-file austen.imatrix.gguf --show-statistics`."""
    found = statistics(read_imatrix(THEIRS).entries).layers
    assert sorted(found) == [0, 1, 2, 3]
    for layer, theirs in enumerate(PRINTED):
        f = found[layer]
        ours = (f.energy, f.gain, f.distance, f.cosine, f.pearson, f.covariance)
        for one, other, exact in zip(ours, theirs, (1e-3, 6e-3, 6e-5, 6e-5, 6e-5, 6e-5), strict=True):
            assert one == (None if other is None else pytest.approx(other, rel=0, abs=exact))


def test_layers_that_predict_later_tokens_are_compared_with_each_other() -> None:
    one = np.ones(1, np.float32)
    entries = {f"blk.{i}.ffn_up.weight": Entry(np.full((1, 4), i + 1, np.float32), one) for i in range(4)}
    gains = [found.gain for found in statistics(entries, 2).tensors.values()]
    assert gains == [None, pytest.approx(2**0.5), None, pytest.approx((4 / 3) ** 0.5)]


def test_without_sums_of_inputs() -> None:
    """The legacy form has none: the mean squares are described instead."""
    entries = {f"blk.{i}.a.weight": Entry(np.array([[1, 3]], np.float32), np.ones(1, np.float32)) for i in (0, 2)}
    found = statistics(entries).tensors["blk.2.a.weight"]
    assert (found.energy, found.mean, found.deviation, found.gain, found.distance) == (4, 2, 1, 1, 0)
    assert found.cosine == pytest.approx(1)


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    sums = np.array([[1, np.nan], [np.inf, 2]], np.float32)
    matrix = ImportanceMatrix(tmp_path / "x.gguf", {"blk.0.a.weight": Entry(sums, np.ones(2, np.float32))})
    assert statistics(matrix.entries).tensors["blk.0.a.weight"].energy == 3
    nothing = replace(matrix, entries={"a": Entry(sums, np.zeros(2, np.float32))})
    assert not statistics(nothing.entries).tensors


def test_sums_of_squares_that_are_negative() -> None:
    def entry(value: float) -> Entry:
        return Entry(np.full((1, 4), value, np.float32), np.ones(1, np.float32), None)

    for one, other in ((-1.0, 2.0), (2.0, -1.0), (-3.0, -3.0)):
        names = [f"blk.{layer}.ffn_up.weight" for layer in (0, 1)]
        found = statistics(dict(zip(names, map(entry, (one, other)), strict=True)))
        assert found.tensors[names[1]].gain is None
        assert found.layers[1].gain is None
