"""float16 and bfloat16 by integer arithmetic agree with numpy and with the definition, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import quants

EVERY_16_BITS = np.arange(65536, dtype=np.uint16)


def random_floats(count: int, seed: int) -> np.ndarray:
    """Floats of every exponent, and many around the float16 range; no NaN."""
    rng = np.random.default_rng(seed)
    anything = rng.integers(0, 2**32, count, np.uint64).astype(np.uint32).view(np.float32)
    near = (rng.standard_normal(count) * 2.0 ** rng.integers(-30, 20, count)).astype(np.float32)
    edges = [0, -0.0, 65504, 65519.996, 65520, 2**-14, 2**-24, 2**-25, 1.5 * 2**-25, 1e-45, np.inf]
    edges = np.array(edges, np.float32)
    both = np.concatenate([anything, near, edges, -edges])
    return both[~np.isnan(both)]


def test_float16_is_numpys():
    values = random_floats(300_000, 1)[None]
    with np.errstate(over="ignore"):
        expected = values.astype("<f2").view(np.uint8)
    assert np.array_equal(quants.encode("F16", values), expected)


def test_ties_of_float16_go_to_even():
    exact = EVERY_16_BITS[:0x7BFF].view(np.float16).astype(np.float64)
    midpoints = ((exact[:-1] + exact[1:]) / 2).astype(np.float32)
    encoded = quants.encode("F16", midpoints[None]).view("<u2")[0]
    assert np.array_equal(encoded, np.arange(midpoints.size) + np.arange(midpoints.size) % 2)


def test_every_float16_widens_exactly():
    decoded = quants.decode("F16", EVERY_16_BITS.view(np.uint8)[None])[0]
    expected = EVERY_16_BITS.view(np.float16).astype(np.float32)
    numbers = ~np.isnan(expected)
    assert np.array_equal(decoded.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])
    assert np.isnan(decoded[~numbers]).all()


def test_bfloat16_is_the_nearest_of_the_upper_halves():
    values = random_floats(300_000, 2)
    bits = values.view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    assert np.array_equal(quants.encode("BF16", values[None]).view("<u2")[0], expected)


def test_every_bfloat16_is_the_upper_half_of_a_float32():
    decoded = quants.decode("BF16", EVERY_16_BITS.view(np.uint8)[None])[0]
    assert np.array_equal(decoded.view(np.uint32), EVERY_16_BITS.astype(np.uint32) << 16)


@pytest.mark.parametrize(("name", "quiet"), [("F16", 0x7E00), ("BF16", 0x7FC0)])
def test_nan_stays_nan_and_keeps_its_sign(name: str, quiet: int):
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    encoded = quants.encode(name, nans[None]).view("<u2")[0]
    assert encoded.tolist() == [quiet, quiet | 0x8000, quiet, quiet | 0x8000]


@pytest.mark.parametrize("name", ["F16", "BF16"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 33])
def test_any_width(name: str, width: int):
    values = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    raw = quants.encode(name, values)
    alone = np.array([[quants.encode(name, [[v]])[0] for v in row] for row in values]).reshape(3, -1)
    assert np.array_equal(raw, alone)
    assert np.array_equal(quants.encode(name, quants.decode(name, raw)), raw)
