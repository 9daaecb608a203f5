"""Matrices of which blocks along the diagonal are kept."""

import numpy as np
import pytest

from runtime.hessians import Hessians, Products
from runtime.products.block_diagonal import BlockDiagonal, column_blocks, weighted_sum


@pytest.mark.parametrize(
    ("width", "most", "sizes"),
    [
        (576, 576, [576]),
        (576, 575, [512, 64]),
        (1536, 600, [512] * 3),
        (1024, 1000, [512] * 2),
        (600, 1, [256, 256, 88]),
        (53248, 16384, [13312] * 4),
        (14336, 14335, [7168] * 2),
    ],
)
def test_columns_are_cut_evenly_where_blocks_of_formats_end(width: int, most: int, sizes: list[int]) -> None:
    blocks = column_blocks(width, most)
    assert [here.stop - here.start for here in blocks] == sizes
    assert [here.start for here in blocks] == [0, *np.cumsum(sizes)[:-1]]


def test_sums_are_those_of_the_whole_matrix_within_blocks() -> None:
    x = np.random.default_rng(0).standard_normal((900, 700)).astype(np.float32)
    whole, cut = Products.of(700, 700), Products.of(700, 300)
    for products in (whole, cut):
        products.add(x[:500], 2)
        products.add(x[500:], 1)
    assert (whole.width, cut.width, cut.count) == (700, 700, 900)
    truth = x.astype(np.float64).T @ x / 900
    assert np.allclose(whole.matrix().whole(), truth, atol=1e-5)
    found = cut.matrix()
    assert len(found) == 700
    inside = np.zeros((700, 700), bool)
    for here, block in found.columns():
        inside[here, here] = True
        assert np.allclose(block, truth[here, here], atol=1e-5)
    assert np.array_equal(found.whole() != 0, inside)
    assert np.allclose(found.diagonal(), truth.diagonal(), atol=1e-5)
    left, right = x[:5], x[5:10]
    expected = np.einsum("ij,jk,ik->", left, found.whole(), right)
    assert np.isclose(found.along(left, right), expected, rtol=1e-5)


def test_weighted_sums() -> None:
    a, b = (BlockDiagonal((np.full((2, 2), number), np.full((1, 1), number))) for number in (1.0, 10.0))
    total = weighted_sum([(a, 2.0), (b, 0.5)])
    assert np.array_equal(total.whole(), [[7, 7, 0], [7, 7, 0], [0, 0, 7]])
    assert np.array_equal(a.blocks[0], np.ones((2, 2)))


def test_inputs_are_cut_as_they_come() -> None:
    found = Hessians(2, 256)
    found.observe("w", np.ones((3, 600), np.float32))
    found.observe_values("v", 0, np.ones((3, 512), np.float32))
    assert [len(upper) for upper in found.of["w", 0].uppers] == [256, 256, 88]
    assert [len(upper) for upper in found.values["v", 0].uppers] == [256, 256]
