"""Inputs of 16 bits as bytes, and products with them."""

import numpy as np
import pytest

from quants import encode, format_named
from runtime.kernels import byte_dots, dots
from runtime.kernels.thread_team import operation_row, run_share
from runtime.products import gemv

pytestmark = pytest.mark.skipif(not byte_dots.TAKES_BYTES, reason="the processor has no products of bytes")
RNG = np.random.default_rng(5)


def as_bytes(x):
    """What the bytes of an input stand for, in the order of its columns: int (n, room)."""
    numbers = x.numbers.reshape(len(x.numbers), -1, byte_dots.WITH_BYTES)
    places = (byte_dots.UPPER_AT, byte_dots.LOWER_AT)
    # (n, pieces, register, lane, column): a lane has sixteen columns, a register four of each
    upper, lower = (
        np.ascontiguousarray(numbers[:, :, at : at + 64]).view(np.int8).reshape(*numbers.shape[:2], 4, 16, 4)
        for at in places
    )
    return (256 * upper.astype(int) + lower).swapaxes(2, 3).reshape(len(numbers), -1)


def test_bytes_are_those_of_the_integers():
    """Of the largest ones, too, whose upper byte rounds up to 127."""
    x = RNG.standard_normal((3, 700)).astype(np.float32)
    x[1, :4] = 9, -9, 8.99, -8.99
    x[2, 256:] = 0
    made = gemv.as_vectors(x)
    assert np.abs(made.shorts).max() == 127 * 256 + 127
    np.testing.assert_array_equal(as_bytes(made), made.shorts)
    numbers = made.numbers.reshape(3, -1, byte_dots.WITH_BYTES)
    lanes = numbers[:, :, byte_dots.TWICE_AT : byte_dots.TWICE_AT + 16]
    np.testing.assert_array_equal(lanes, numbers[:, :, :8].repeat(2, axis=2))


@pytest.mark.parametrize("integer", [-32639, -128, -1, 1, 127, 128, 32639])
def test_products_are_exact(integer):
    """Of integers with any upper and lower byte: one that is wrong by 1 is seen in a sum of 512."""
    width = 512
    values = RNG.standard_normal((5, width)).astype(np.float32)
    raw = np.ascontiguousarray(encode("Q6_K", values))
    weights = format_named("Q6_K").decode(raw).astype(np.float64)
    x = gemv.vectors(width, 4)
    x.shorts[:] = integer
    numbers = x.numbers.reshape(4, -1, dots.NUMBERS)
    numbers[:, :, :8], numbers[:, :, 8:16], numbers[:, :, 16:32] = 1, 32 * integer, 16 * integer
    dots.spread_all(x.shorts.reshape(-1), x.numbers.reshape(-1))
    for tokens in (1, 2, 4):
        out, state = np.zeros((tokens, 5), np.float32), np.array([tokens])
        run_share(
            operation_row(
                dots.OF_FORMAT["Q6_K"](),
                {
                    dots.WEIGHTS: raw,
                    dots.ROW_BYTES: raw.shape[1],
                    dots.ROWS: 5,
                    dots.WIDTH: width,
                    dots.SHORTS_AT: x.shorts,
                    dots.NUMBERS_AT: x.numbers,
                    dots.OUT: out,
                    dots.OUT_WIDTH: 5,
                    dots.STATE: state,
                },
            ),
            0,
            1,
        )
        size = np.abs(weights).sum(1) * abs(integer)
        assert (np.abs(out - weights.sum(1) * integer) <= 3e-7 * size).all()
