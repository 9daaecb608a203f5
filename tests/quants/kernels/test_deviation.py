from __future__ import annotations

import numpy as np
import pytest

from quants.kernels.deviation import deviation


@pytest.mark.parametrize("size", [0, 1, 15, 16, 1023, 1024, 5000])
def test_as_computed_in_double_precision(size: int) -> None:
    random = np.random.default_rng(size)
    a, b = random.standard_normal((2, size)).astype(np.float32)
    difference = (a - b).astype(float)
    squares, largest = deviation(a, b)
    assert squares == pytest.approx(np.square(difference).sum(), rel=1e-6)
    assert largest == np.abs(difference).max(initial=0)
    assert deviation(a, a) == (0, 0)


def test_a_lone_large_error_is_found_wherever_it_is() -> None:
    for at in (0, 17, 1024, 1031, 1039):
        wanted = np.zeros((2, 520), np.float32)
        values = wanted.copy()
        values.flat[at] = -3
        assert deviation(values, wanted) == (9, 3)
