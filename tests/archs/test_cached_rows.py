"""Matrices that are kept while their columns are read."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from archs import cached_rows
from archs.cached_rows import CachedRows
from archs.transforms import transposed
from quants import FormatError, Tensor, format_named


class Counted:
    """A float32 tensor that counts the reads of its rows."""

    def __init__(self, *shape: int) -> None:
        self.values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        self.reads = 0
        self.tensor = Tensor("x", shape, format_named("F32"), self.read)

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        self.reads += 1
        return self.values.reshape(-1, self.values.shape[-1])[start:stop].view(np.uint8)


def test_a_transposed_matrix_is_read_once() -> None:
    source = Counted(64, 48)
    turned = transposed(source.tensor)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: turned.float32(start, start + 3), range(0, 48, 3)))
    assert np.array_equal(np.concatenate(parts), source.values.T)
    assert source.reads == 1


def test_each_of_several_matrices_is_read_once() -> None:
    source = Counted(3, 8, 5)
    turned = transposed(source.tensor)
    parts = [turned.float32(start, start + 5) for start in range(0, 15, 5)]
    assert np.array_equal(np.concatenate(parts), source.values.swapaxes(1, 2).reshape(15, 8))
    assert np.array_equal(turned.float32(3, 12), source.values.swapaxes(1, 2).reshape(15, 8)[3:12])
    assert source.reads == 3


def test_the_oldest_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_rows, "LIMIT", 2 * 4 * 6 * 4)
    sources = [Counted(4, 6) for _ in range(3)]
    matrices = [CachedRows(source.tensor) for source in sources]
    for matrix in matrices:
        matrix.elements()
    assert [matrix.nbytes for matrix in matrices] == [0, 96, 96]
    matrices[1].elements()
    matrices[0].elements()
    assert [matrix.nbytes for matrix in matrices] == [96, 96, 0]
    assert [source.reads for source in sources] == [2, 1, 1]


def test_a_matrix_beyond_the_limit_is_kept_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_rows, "LIMIT", 10)
    source, other = Counted(4, 6), Counted(4, 6)
    large, next_one = CachedRows(source.tensor), CachedRows(other.tensor)
    large.elements()
    large.elements()
    assert source.reads == 1
    next_one.elements()
    assert large.nbytes == 0


def test_nothing_is_kept_of_tensors_that_are_gone() -> None:
    matrix = CachedRows(Counted(4, 6).tensor)
    matrix.elements()
    (reference,) = (each for each in cached_rows._recent if each() is matrix)
    del matrix
    gc.collect()
    assert reference() is None
    CachedRows(Counted(2, 2).tensor).elements()
    assert reference not in cached_rows._recent


def test_block_formats_have_no_elements() -> None:
    raw = np.zeros((2, 34), np.uint8)
    tensor = Tensor("q", (2, 32), format_named("Q8_0"), lambda a, b: raw[a:b], "model.safetensors: q")
    with pytest.raises(FormatError, match=r"model.safetensors: q is Q8_0"):
        CachedRows(tensor).elements()
