"""Blocks that mean exactly the values that they are made of: found for all values that some block means."""

from __future__ import annotations

import numpy as np
import pytest

from quants import FormatError, encode, format_named
from quants.exact import EXACT, exact_blocks, formats_that_fit

ROWS, WIDTH = 24, 1024
# Whose blocks, of any bytes, are found again.
FOUND = ("Q4_0", "Q8_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "Q1_0", "Q2_0", "TQ2_0", "Q3_K", "Q6_K")
INTEGERS = {  # lowest and highest integer that a format with a scale a row holds
    "Q4_0": (-8, 7),
    "Q8_0": (-128, 127),
    "Q4_1": (0, 15),
    "Q5_0": (-16, 15),
    "Q5_1": (0, 31),
    "TQ1_0": (-1, 1),
    "TQ2_0": (-1, 1),
    "Q2_0": (-1, 2),
    "Q2_K": (-2, 1),
    "Q3_K": (-4, 3),
    "Q4_K": (-5, 10),
    "Q5_K": (-20, 11),
    "Q6_K": (-32, 31),
}


def scales(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Half-precision numbers of any size, subnormal ones, too."""
    bits = rng.integers(1, 0x7400, shape, dtype=np.uint16)
    return bits.view(np.float16).astype(np.float32)


@pytest.mark.parametrize("name", FOUND)
def test_whatever_a_block_means_is_found_again(name: str) -> None:
    form, rng = format_named(name), np.random.default_rng(1)
    raw = rng.integers(0, 256, (ROWS, form.row_bytes(WIDTH)), dtype=np.uint8)
    blocks = raw.reshape(-1).view(form.block)
    for field in {"d", "m"} & set(form.block.names or ()):
        blocks[field] = scales(rng, blocks.shape) * rng.choice((-1, 1), blocks.shape)
    if "m" in (form.block.names or ()):  # as a scale times a zero point is
        blocks["m"] = (blocks["d"].astype(np.float32) * rng.integers(-2, 1, blocks.shape)).astype(np.float16)
    if name == "MXFP4":
        blocks["e"] = rng.integers(2, 250, blocks.shape)
    if name == "TQ2_0":  # three of the four codes
        high = blocks["qs"] & 0xAA
        blocks["qs"] = high | blocks["qs"] & ~(high >> 1)
    values = form.decode(raw)
    found, inexact = exact_blocks(form, values)
    assert not inexact.any()
    np.testing.assert_array_equal(form.decode(found), values)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_times_a_scale(name: str) -> None:
    form, rng, (low, high) = format_named(name), np.random.default_rng(2), INTEGERS[name]
    values = rng.integers(low, high + 1, (ROWS, WIDTH)).astype(np.float32) * scales(rng, (ROWS, 1))
    raw, inexact = exact_blocks(form, values)
    assert raw.shape == (ROWS, form.row_bytes(WIDTH))
    assert not inexact.any()
    np.testing.assert_array_equal(form.decode(raw), values)


@pytest.mark.parametrize("name", INTEGERS)
def test_one_inexact_value_is_one_inexact_block(name: str) -> None:
    form, rng, (low, high) = format_named(name), np.random.default_rng(3), INTEGERS[name]
    values = rng.integers(low, high + 1, (ROWS, WIDTH)).astype(np.float32) * np.float32(0.125)
    values[7, 300] = np.nextafter(np.float32(0.125), np.float32(1))
    inexact = exact_blocks(form, values)[1]
    assert np.argwhere(inexact).tolist() == [[7, 300 // form.block_size]]


@pytest.mark.parametrize("name", EXACT)
def test_a_scale_that_half_precision_lacks(name: str) -> None:
    form, rng = format_named(name), np.random.default_rng(4)
    values = rng.choice((-1, 1), (2, WIDTH)).astype(np.float32) * np.float32(1 + 2**-20)
    assert exact_blocks(form, values)[1].all()
    assert exact_blocks(form, values / np.float32(1 + 2**-20) * np.float32(2**-100))[1].all() != (name == "MXFP4")


@pytest.mark.parametrize("name", EXACT)
def test_normal_numbers_are_on_no_grid(name: str) -> None:
    values = np.random.default_rng(5).normal(size=(ROWS, WIDTH)).astype(np.float32)
    assert exact_blocks(format_named(name), values)[1].all()


@pytest.mark.parametrize("name", EXACT)
def test_nothing_but_zeros_and_no_numbers(name: str) -> None:
    values = np.zeros((4, WIDTH), np.float32)
    values[1, 5], values[2, 600], values[3, 1000] = np.nan, np.inf, -np.inf
    inexact = exact_blocks(format_named(name), values)[1]
    assert not inexact[0].any()
    assert inexact[1:].sum(axis=1).tolist() == [1, 1, 1]


def test_scales_are_positive_where_they_can_be() -> None:
    values = np.arange(-7, 8, dtype=np.float32).repeat(32).reshape(15, 32) * np.arange(32, dtype=np.float32) % 8 / 4
    form = format_named("Q4_0")
    raw, inexact = exact_blocks(form, values)
    assert not inexact.any()
    assert not np.signbit(raw.view(form.block)["d"]).any()


def test_a_bfloat16_scale_below_half_precision_is_inexact_unless_integers_make_up_for_it() -> None:
    odd, even = np.float32(1.0078125 * 2**-18), np.float32(1.5 * 2**-18)
    codes = (np.arange(32) % 15 - 7).astype(np.float32)[None]
    form = format_named("Q4_0")
    assert exact_blocks(form, codes * odd)[1].all()
    assert not exact_blocks(form, codes * even)[1].any()


def test_what_was_quantized_is_found_in_its_format() -> None:
    """Files that others wrote, decoded: of every format whose blocks have one scale."""
    rows = np.random.default_rng(6).normal(size=(4, WIDTH)).astype(np.float32)
    for name in ("Q4_0", "Q5_0", "Q8_0", "MXFP4", "Q2_0", "TQ1_0", "TQ2_0", "Q1_0"):
        form = format_named(name)
        assert not exact_blocks(form, form.decode(encode(name, rows)))[1].any(), name


def test_formats_that_fit_are_the_smallest_first() -> None:
    names = [form.name for form in formats_that_fit(WIDTH)]
    assert names[:4] == ["Q1_0", "TQ1_0", "TQ2_0", "Q2_0"]
    assert names.index("Q4_0") < names.index("Q4_K") < names.index("Q5_0") < names.index("Q8_0")
    assert [form.name for form in formats_that_fit(96)] == ["MXFP4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
    assert formats_that_fit(40) == []


def test_other_formats_are_refused() -> None:
    with pytest.raises(FormatError, match="IQ4_XS is no format"):
        exact_blocks(format_named("IQ4_XS"), np.zeros((1, 256), np.float32))


@pytest.mark.parametrize("stored", ["BF16", "F16"])
@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "TQ2_0", "Q2_0"])
def test_blocks_that_were_rounded_to_16_bits(name: str, stored: str) -> None:
    form, kept = format_named(name), format_named(stored)
    before = form.decode(encode(name, np.random.default_rng(8).normal(size=(ROWS, WIDTH)).astype(np.float32)))
    values = kept.decode(kept.encode(before))
    raw, inexact = exact_blocks(form, values, kept)
    assert not inexact.any()
    np.testing.assert_array_equal(kept.decode(kept.encode(form.decode(raw))), values)
    if stored == "F16":  # has as many digits as the scales: they are what they were
        np.testing.assert_array_equal(form.decode(raw), before)


def test_scales_of_bfloat16_are_what_they_were_before_rounding() -> None:
    rng, kept, form = np.random.default_rng(9), format_named("BF16"), format_named("Q4_0")
    scale = kept.decode(kept.encode(rng.uniform(1e-3, 1e-2, (ROWS, WIDTH // 128)).astype(np.float32)))
    before = rng.integers(-8, 8, (ROWS, WIDTH)).astype(np.float32) * np.repeat(scale, 128, axis=1)
    values = kept.decode(kept.encode(before))
    assert exact_blocks(form, values)[1].mean() > 0.5
    raw, inexact = exact_blocks(form, values, kept)
    assert not inexact.any()
    np.testing.assert_array_equal(form.decode(raw), before)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("stored", ["BF16", "F16"])
def test_rounding_makes_no_grid_of_normal_numbers(name: str, stored: str) -> None:
    kept = format_named(stored)
    values = kept.decode(kept.encode(np.random.default_rng(10).normal(size=(ROWS, WIDTH)).astype(np.float32)))
    values[0, 0], values[1, 0] = np.nan, np.inf
    assert exact_blocks(format_named(name), values, kept)[1].all()
