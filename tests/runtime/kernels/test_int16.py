"""Products in 16-bit integers, against float64.

What is packed is looked at everywhere. Where the processor lacks the instruction, its sums are made here of the packed
integers, so that accuracy and range are shown there too; that products then take the way of float32 is shown with it.
"""

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from runtime.kernels import int16
from runtime.kernels.int16 import BLOCK, PAIRS, ROWS, TOKENS
from runtime.products import integer_product
from runtime.products.integer_product import COLUMNS, packed, tiles
from runtime.products.matmul import matmul

RNG = np.random.default_rng(16)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    RNG.bit_generator.state = START


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def integers_of(x, threads=1):
    """x as packed: integers (rows, blocks, 32) in int64 and scales (rows, blocks), rows of padding too."""
    found = packed(x, threads)
    assert len(found.pairs) == len(found.scales) * PAIRS
    integers = found.pairs.view(np.int16).astype(np.int64).reshape(-1, found.blocks, TOKENS, BLOCK)
    scales = found.scales.reshape(-1, found.blocks, TOKENS)
    return integers.swapaxes(1, 2).reshape(-1, found.blocks, BLOCK), scales.swapaxes(1, 2).reshape(-1, found.blocks)


def weights_of(weight, first, last):
    """The same of rows first … last - 1 of a weight, from its tiles; scales (rows,)."""
    integers, scales, at = [], [], first
    for row, count, pairs, scale in tiles(weight, first, last):
        assert row == at
        tile = pairs.reshape(-1, PAIRS, ROWS)[:, :, :count]  # (blocks, pairs, rows)
        low, high = (tile << 16) >> 16, tile >> 16
        integers.append(np.stack([low, high], -1).transpose(2, 0, 1, 3).reshape(count, -1, BLOCK).astype(np.int64))
        scales.append(scale[:count].copy())
        at += count
    assert at == last
    return np.concatenate(integers), np.concatenate(scales)


def product(x, weight, first=0, last=None, threads=1):
    """x times rows of the weight by way of the integers."""
    last = weight.rows if last is None else last
    (a, a_scales), (b, b_scales) = integers_of(x, threads), weights_of(weight, first, last)
    sums = np.einsum("tbi,rbi->trb", a[: len(x)], b)
    assert np.abs(sums).max() < 2**31
    with np.errstate(invalid="ignore", over="ignore"):
        made = np.einsum("trb,tb,r->tr", sums.astype(np.float32), a_scales[: len(x)], b_scales)
    if not int16.available():
        return made
    found = np.full((len(x), last - first), 7, np.float32)
    integer_product.multiply(packed(x, threads), weight, first, last, found, threads)
    finite = np.isfinite(made)
    assert (np.isfinite(found) == finite).all()
    assert (np.abs(found[finite] - made[finite]) <= 1e-5 * sizes(x, weight.float32(first, last))[finite]).all()
    return found


def sizes(x, weights):
    """The largest that each product could be: (inputs, rows)."""
    return np.outer(*(np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (x, weights)))


def error(found, x, weights):
    """Beside float64, mean and largest, in units of what a sum of so many random products is."""
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    off = np.abs(found - exact) / np.maximum(sizes(x, weights), 1e-300) * np.sqrt(x.shape[1])
    return np.sqrt((off**2).mean()), off.max()


@pytest.mark.parametrize(
    ("inputs", "rows", "width", "threads"),
    [
        (1, 1, 32, 1),
        (2, 63, 100, 1),
        (3, 64, 64, 2),
        (5, 65, 31, 1),
        (7, 200, 96, 3),
        (49, 130, 333, 2),
        (100, 64, 2080, 2),
    ],
)
def test_random_values(inputs, rows, width, threads):
    x, weights = normal(inputs, width), normal(rows, width)
    mean, most = error(product(x, from_array("w", weights), threads=threads), x, weights)
    assert mean < 1e-4
    assert most < 6e-4


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_K"])
def test_stored_formats_and_some_of_their_rows(name):
    raw = encode(name, normal(140, 512))
    weight = Tensor("w", (140, 512), format_named(name), lambda start, stop: raw[start:stop])
    x = normal(10, 512)
    mean, _ = error(product(x, weight, 3, 137, 2), x, weight.float32()[3:137])
    assert mean < 1e-4


def test_values_of_a_wide_range_in_a_block():
    """One value is a thousand times the others: they keep five bits or more, the sum its size."""
    x, weights = normal(6, 256), normal(70, 256)
    x[:, 5::32] *= 1000
    weights[:, 77] *= 1000
    assert error(product(x, from_array("w", weights)), x, weights)[1] < 2e-3
    alone = np.zeros((4, 64), np.float32)
    alone[:, 40] = [1, -1, 1e18, 1e-10]
    found = product(alone, from_array("w", weights[:, :64].copy()))
    np.testing.assert_allclose(found / alone[:, 40:41], np.tile(weights[:, 40], (4, 1)), atol=5e-4)


def test_zeros():
    x, weights = normal(4, 96), normal(66, 96)
    x[1], x[2, :32], weights[3], weights[:, 32:64] = 0, 0, 0, 0
    found = product(x, from_array("w", weights))
    assert not found[1].any()
    assert not found[:, 3].any()
    assert error(found, x, weights)[0] < 1e-4
    integers, scales = integers_of(np.full((2, 32), 1e-18, np.float32))
    assert not integers.any()
    assert not scales.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 17, 90])
def test_what_is_not_finite_stays_so(value, column):
    x, weights = normal(5, 96), normal(70, 96)
    x[2, column], weights[65, column] = value, value
    found = np.isfinite(product(x, from_array("w", weights)))
    assert not found[2].any()
    assert not found[:, 65].any()
    assert np.delete(np.delete(found, 2, 0), 65, 1).all()


@pytest.mark.parametrize("value", [1, -1, 3.7, 1e-3])
def test_sums_of_equal_signs_do_not_overflow(value):
    """The largest sums there are: constant rows, and rows times themselves."""
    constant = np.full((TOKENS, 320), value, np.float32)
    found = product(constant, from_array("w", np.concatenate([constant, -constant])))
    np.testing.assert_allclose(found[:, :TOKENS], 320 * value**2, rtol=2e-4)
    np.testing.assert_allclose(found[:, TOKENS:], -320 * value**2, rtol=2e-4)


@pytest.mark.parametrize("kind", ["normal", "uniform", "two values", "one large"])
def test_rows_times_themselves_do_not_overflow(kind):
    x = normal(60, 128)
    if kind == "uniform":
        x = RNG.uniform(-1, 1, x.shape).astype(np.float32)
    elif kind == "two values":
        x = np.where(x < 0, np.float32(-1), np.float32(0.99995))
    elif kind == "one large":
        x[:, ::32] *= 40
    integers, _ = integers_of(x)
    assert (integers**2).sum(2).max() < 2**31
    assert np.abs(integers).max() <= 32767
    assert error(product(x, from_array("w", x)), x, x)[1] < 2e-3
    weights, _ = weights_of(from_array("w", x), 0, 60)
    assert (weights**2).sum(2).max() < 2**31


def test_inputs_are_filled_up_with_zeros():
    integers, scales = integers_of(normal(TOKENS + 1, 40))
    assert len(integers) == 2 * TOKENS
    assert not integers[TOKENS + 1 :].any()
    assert not scales[TOKENS + 1 :].any()
    assert not integers[:, 1, 8:].any()


@pytest.mark.parametrize(("rows", "inputs"), [(64, 100), (190, 50), (1000, 10)])
def test_work_is_shared_by_rows_and_by_inputs(monkeypatch, rows, inputs):
    monkeypatch.setattr(integer_product, "OPS", 1 << 14)
    x, weights = normal(inputs, 64), normal(rows, 64)
    weight = from_array("w", weights)
    found = product(x, weight, threads=3)
    assert error(found, x, weights)[0] < 1e-4
    np.testing.assert_array_equal(found, product(x, weight))


def test_columns_are_what_is_multiplied_at_once():
    weights = normal(2 * COLUMNS + 70, 64)
    weight, x = from_array("w", weights), normal(20, 64)
    if not int16.available():
        assert not integer_product.is_faster(1000, *weights.shape)
        return
    whole = product(x, weight, 5, len(weights))
    pieces = [(first, part.copy()) for first, part in integer_product.columns(packed(x, 2), weight, 5, len(weights))]
    assert [first for first, _ in pieces] == [5, 5 + COLUMNS, 5 + 2 * COLUMNS]
    np.testing.assert_array_equal(np.concatenate([part for _, part in pieces], 1), whole)


def test_which_products_are_made_so():
    """matmul in "float32": where it may be, it pays and the processor can; else the same as "exact", to a bit."""
    weights, x = normal(1200, 1024), normal(60, 1024)
    weight = from_array("w", weights)
    for inputs, may_round in ((x, True), (x[:20], True), (x, False)):
        found = matmul(inputs, weight, threads=2, precision="float32", may_round=may_round)
        same = (found == matmul(inputs, weight, threads=2, precision="exact", may_round=may_round)).all()
        assert same != (int16.available() and may_round and len(inputs) >= integer_product.MIN_INPUTS)
        assert error(found, inputs, weights)[0] < 1e-4
    assert not integer_product.is_faster(1000, 3, 32)


@pytest.mark.parametrize(
    ("tokens", "rows", "width", "saves"),
    [
        (512, 576, 576, True),
        (512, 256, 256, True),
        (512, 128, 256, False),
        (300, 320, 64, False),
        (9000, 9000, 64, False),
        (200, 512, 512, False),
        (256, 512, 512, True),
    ],
)
def test_what_saves_little_is_not_rounded(tokens, rows, width, saves):
    assert integer_product.saves(tokens, rows, width) == saves
