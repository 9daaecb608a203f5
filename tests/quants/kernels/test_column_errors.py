"""Errors by column: the sums of numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from quants.kernels.column_errors import column_errors


@pytest.mark.parametrize("shape", [(0, 32), (1, 1), (3, 7), (50, 256), (1000, 96)])
def test_as_computed_in_double_precision(shape):
    random = np.random.default_rng(shape[1])
    a, b = random.standard_normal((2, *shape)).astype(np.float32)
    error = a.astype(np.float64) - b
    found = column_errors(a, b)
    np.testing.assert_allclose(found.squares, np.square(error).sum(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.powers, np.square(b.astype(np.float64)).sum(axis=0), rtol=1e-13)
    assert found.largest == np.abs(error).max(initial=0)
    assert found.non_finite == 0


def test_errors_that_single_precision_would_lose():
    wanted = np.full((1 << 16, 1), 1000, np.float32)
    values = wanted.copy()
    values[5] += np.float32(0.0625)
    found = column_errors(values, wanted)
    assert found.squares[0] == 0.0625**2
    assert found.powers[0] == 1e6 * (1 << 16)


def test_values_that_are_not_finite_are_counted_and_left_out():
    nan, inf = np.nan, np.inf
    wanted = np.array([[1, nan, inf, -inf, 2], [1, 1, 1, inf, 2]], np.float32)
    values = np.array([[3, nan, inf, inf, nan], [1, nan, 1, inf, 3]], np.float32)
    found = column_errors(values, wanted)
    assert found.non_finite == 3  # -inf that became inf, 2 and 1 that became NaN
    assert found.squares.tolist() == [4, 0, 0, 0, 1]
    assert found.powers.tolist() == [2, 0, 1, 0, 4]
    assert found.largest == 2


def test_the_greatest_float32_does_not_overflow():
    most = np.finfo(np.float32).max
    found = column_errors(np.full((4, 3), -most), np.full((4, 3), most))
    assert found.non_finite == 0
    assert found.largest == 2 * float(most)
