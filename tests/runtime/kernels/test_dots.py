"""Products straight from stored blocks, against decoded weights in float64."""

import numpy as np
import pytest

from quants import encode, format_named
from runtime.kernels import dots, thread_team
from runtime.kernels import token_parts as parts
from runtime.kernels.thread_team import FIELDS

RNG = np.random.default_rng(8)
START = RNG.bit_generator.state
SUPER, NUMBERS = dots.SUPER, dots.NUMBERS
EXACT = {"F32", "F16", "BF16"}  # inputs are not made integers


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    RNG.bit_generator.state = START


class Rows:
    """Inputs as products take them: float32, integers and numbers, filled up with zeros to a multiple of 256."""

    def __init__(self, x):
        tokens, width = x.shape
        room = -(-width // SUPER) * SUPER
        self.floats = np.pad(x, ((0, 0), (0, room - width)))
        self.shorts = np.zeros((tokens, room), np.int16)
        self.numbers = np.zeros((tokens, room // SUPER * NUMBERS), np.float32)
        run(
            parts.pack_rows(),
            {
                parts.STATE: np.array([tokens, 0]),
                parts.OUT: self.floats,
                parts.OUT_WIDTH: room,
                parts.SHORTS: self.shorts,
                parts.NUMBERS_AT: self.numbers,
            },
            2,
        )


def run(address, fields, threads):
    """An operation by so many threads, one after the other, as nothing says when each has its turn."""
    row = np.zeros(FIELDS, np.int64)
    row[0] = address
    for at, value in fields.items():
        row[at] = value.ctypes.data if isinstance(value, np.ndarray) else value
    for thread in reversed(range(threads)):
        thread_team.run_share(row, thread, threads)


def product(name, raw, x, threads=1, bias=None, adds=None, out_width=None):
    """The operation of a format: float32 (tokens, out_width), filled with 7 where it writes nothing."""
    packed = Rows(x)
    out = np.full((len(x) + 1, out_width or len(raw)), 7, np.float32)
    if adds is not None:
        out[: len(x), : len(raw)] = adds
    run(
        dots.OF_FORMAT[name](),
        {
            dots.WEIGHTS: raw,
            dots.ROW_BYTES: raw.shape[1],
            dots.ROWS: len(raw),
            dots.WIDTH: x.shape[1],
            dots.FLOATS_AT: packed.floats,
            dots.SHORTS_AT: packed.shorts,
            dots.NUMBERS_AT: packed.numbers,
            dots.OUT: out,
            dots.OUT_WIDTH: out.shape[1],
            dots.BIAS: 0 if bias is None else bias,
            dots.ADDS: adds is not None,
            dots.STATE: np.array([len(x), 0]),
        },
        threads,
    )
    assert (out[len(x) :] == 7).all()
    return out[: len(x)]


def stored(name, rows, width):
    """Rows of a format as bytes, of values, blocks and scales of all kinds, and what they decode to."""
    values = RNG.standard_normal((rows, width)) * np.exp(RNG.uniform(-3, 3, (rows, width // 32))).repeat(32, 1)
    raw = encode(name, (values + RNG.uniform(-1, 1, (rows, 1))).astype(np.float32))
    return np.ascontiguousarray(raw), format_named(name).decode(raw).astype(np.float64)


def assert_close(name, found, x, weights, more=0):
    """Each product within its inputs' rounding, 32767 steps to the largest of 32, and float32's."""
    exact = x.astype(np.float64) @ weights.T + more
    size = np.sqrt((weights**2).sum(1) * (x.astype(np.float64) ** 2).sum(1)[:, None]) + 1e-30
    assert (np.abs(found - exact) / size).max() < (2e-7 if name in EXACT else 5e-5)


def inputs(tokens, width):
    return (RNG.standard_normal((tokens, width)) * np.exp(RNG.uniform(-2, 2, (tokens, 1)))).astype(np.float32)


@pytest.mark.parametrize("name", dots.OF_FORMAT)
def test_an_input_is_multiplied_alike_among_others(name):
    """To the bit, whichever of eight it is and however many there are."""
    raw, _ = stored(name, 7, 2 * max(format_named(name).block_size, 32))
    x = inputs(8, 2 * max(format_named(name).block_size, 32))
    for count in range(1, 8):
        np.testing.assert_array_equal(product(name, raw, x[-count:]), product(name, raw, x)[-count:])


@pytest.mark.parametrize("name", dots.OF_FORMAT)
def test_every_format(name):
    """Any number of tokens and threads, odd numbers of rows, with and without a bias and what was there before."""
    block = max(format_named(name).block_size, 32)
    for tokens, rows, width, threads in [
        (1, 1, block, 1),
        (1, 37, 3 * block, 2),
        (2, 5, 2 * block, 3),
        (3, 2, block, 3),
        (5, 33, 5 * block, 1),
        (8, 61, 4 * block, 3),
    ]:
        raw, weights = stored(name, rows, width)
        x = inputs(tokens, width)
        alone = product(name, raw, x)
        assert_close(name, alone, x, weights)
        np.testing.assert_array_equal(product(name, raw, x, threads), alone)  # whoever computes a row
        bias, before = inputs(1, rows)[0], inputs(tokens, rows)
        found = product(name, raw, x, threads, bias, before, rows + 3)
        assert (found[:, rows:] == 7).all()
        np.testing.assert_allclose(found[:, :rows], alone + bias + before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", dots.OF_FORMAT)
def test_each_weight_by_itself(name):
    """An input of a single one takes one column out: no column is multiplied with another's input."""
    width = 256
    raw, weights = stored(name, 3, width)
    for start in range(0, width, 8):
        chosen = np.arange(start, start + 8)
        found = product(name, raw, np.eye(width, dtype=np.float32)[chosen])
        np.testing.assert_allclose(found, weights[:, chosen].T, rtol=1e-5, atol=2e-6 * np.abs(weights).max())


@pytest.mark.parametrize("name", dots.OF_FORMAT)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 300, 319])
def test_what_is_not_finite_stays_so(name, value, column):
    raw, _ = stored(name, 4, 512)
    x = inputs(3, 512)
    x[1, column] = value
    found = np.isfinite(product(name, raw, x))
    assert found[[0, 2]].all()
    assert not found[1].any()


def test_halves_of_every_size():
    """Scales and weights in float16: subnormal ones, the largest, infinity, NaN."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    weights = halves.view(np.float16).astype(np.float32).reshape(-1, 32)
    one = np.zeros((1, 32), np.float32)
    one[0, 5] = 1
    finite = np.isfinite(weights).all(1)
    found = product("F16", np.ascontiguousarray(halves.reshape(-1, 32)).view(np.uint8), one)[0]
    np.testing.assert_array_equal(found[finite], weights[finite, 5])
    assert not np.isfinite(found[~finite]).any()
    blocks = np.zeros(1 << 16, np.dtype([("d", "<u2"), ("qs", "i1", 32)]))
    blocks["d"], blocks["qs"] = halves, 1
    found, wanted = product("Q8_0", blocks.view(np.uint8).reshape(-1, 34), one)[0], weights.reshape(-1)
    np.testing.assert_allclose(found[np.isfinite(wanted)], wanted[np.isfinite(wanted)], rtol=1e-6)
    assert not np.isfinite(found[~np.isfinite(wanted)]).any()


def test_inputs_as_integers():
    x = inputs(4, 600)
    x[1, 64:96], x[2] = 0, 1e-31
    packed = Rows(x)
    blocks, scales = packed.shorts.reshape(4, -1, 32), packed.numbers.reshape(4, -1, NUMBERS)
    own, sums, halves = scales[:, :, :8], scales[:, :, 8:16], scales[:, :, 16:32]
    back = blocks * own.reshape(4, -1, 1).astype(np.float64)
    values = packed.floats.reshape(4, -1, 32)
    assert (np.abs(back - values) <= np.maximum(np.abs(values).max(2, keepdims=True) / 32767 * 0.51, 1e-30)).all()
    assert not blocks[2].any()
    np.testing.assert_allclose(sums.reshape(4, -1), back.sum(2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(halves.reshape(4, -1), back.reshape(4, -1, 16).sum(2), rtol=1e-4, atol=1e-5)
