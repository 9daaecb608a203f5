"""F16 and BF16: kernels and what decodes small arrays without them, for every value and every length."""

from __future__ import annotations

import numpy as np
import pytest

from quants import format_named
from quants.format import SMALL
from quants.kernels import half_precision

BITS = np.arange(1 << 16, dtype="<u2")


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_small_arrays_are_decoded_as_by_the_kernel(name: str) -> None:
    raw = BITS.view(np.uint8)[None]
    form = format_named(name)
    wanted = form.load_codec().decode(form, raw)
    assert form.decode_small is not None
    assert form.decode_small(raw).tobytes() == wanted.tobytes()
    twice = np.concatenate([raw, raw])
    assert twice.size > SMALL
    assert format_named(name).decode(twice).tobytes() == 2 * wanted.tobytes()


def test_the_kernels_know_every_value() -> None:
    raw = BITS.view(np.uint8)[None]
    number = ~np.isnan(BITS.view("<f2"))
    half = half_precision.decode(format_named("F16"), raw)[0]
    assert half[number].tobytes() == BITS.view("<f2")[number].astype(np.float32).tobytes()
    brain = half_precision.decode(format_named("BF16"), raw)[0]
    assert brain.view(np.uint32).tolist() == (BITS.astype(np.uint32) << 16).tolist()


@pytest.mark.parametrize("name", ["F16", "BF16"])
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("rows", [1, 3])
def test_any_length(name: str, width: int, rows: int) -> None:
    values = np.random.default_rng(width).standard_normal((rows, width), np.float32)
    form = format_named(name)
    raw = half_precision.encode(form, values, None)
    assert raw.shape == (rows, 2 * width)
    padded = np.zeros((1, 1024), np.float32)
    padded[0, : values.size] = values.reshape(-1)
    assert raw.tobytes() == half_precision.encode(form, padded, None).tobytes()[: raw.size]
    decoded = half_precision.decode(form, raw)
    assert decoded.shape == (rows, width)
    np.testing.assert_allclose(decoded, values, rtol=2**-8)
