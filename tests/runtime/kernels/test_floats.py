"""Products in float32, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from runtime.kernels import floats
from runtime.products import float_product
from runtime.products.matmul import Inputs, matmul

pytestmark = pytest.mark.skipif(not floats.available(), reason="BLAS multiplies on this processor")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def product(x: np.ndarray, weight: Tensor, first: int, last: int, threads: int = 1) -> np.ndarray:
    out = np.full((len(x), last - first), np.nan, np.float32)
    float_product.multiply(x, weight, first, last, out, threads)
    return out


@pytest.mark.parametrize(
    ("n", "rows", "width"), [(1, 1, 1), (5, 63, 16), (6, 64, 256), (7, 65, 257), (48, 200, 100), (61, 330, 1000)]
)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_product(n: int, rows: int, width: int, threads: int) -> None:
    x, w = normal(n, width), normal(rows, width)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    found = product(x, from_array("w", w), 0, rows, threads)
    np.testing.assert_allclose(found, exact, atol=3e-6 * np.sqrt(width))
    np.testing.assert_array_equal(product(x, from_array("w", w), rows // 3, rows, threads), found[:, rows // 3 :])


def test_long_sums_lose_no_more_than_short_ones() -> None:
    x, w = normal(30, 8192), normal(64, 8192)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    error = np.sqrt(((product(x, from_array("w", w), 0, 64) - exact) ** 2).mean()) / exact.std()
    assert error < 5e-7


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_K"])
def test_stored_formats(name: str) -> None:
    x, raw = normal(50, 512), encode(name, normal(150, 512))
    weight = Tensor("w", (150, 512), format_named(name), lambda start, stop: raw[start:stop])
    exact = x.astype(np.float64) @ weight.float32().T.astype(np.float64)
    np.testing.assert_allclose(product(x, weight, 0, 150, 2), exact, atol=1e-4)


def test_the_same_bits_whoever_shares_the_work() -> None:
    x, weight = normal(130, 300), from_array("w", normal(700, 300))
    alone = matmul(x, weight)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(matmul(Inputs(x, threads), weight, threads=threads), alone)
    np.testing.assert_array_equal(matmul(x[:60], weight), alone[:60])
    np.testing.assert_array_equal(matmul(x, weight, slice(100, 400)), alone[:, 100:400])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    x, weight = normal(40, 64), from_array("w", normal(300, 64))
    x[7, 3] = value
    found = product(x, weight, 0, 300)
    assert not np.isfinite(found[7]).any()
    assert np.isfinite(np.delete(found, 7, axis=0)).all()
