from __future__ import annotations

import numpy as np
import pytest

from quants.kernels.iq1 import sorting_network


@pytest.mark.parametrize("count", [16, 32])
def test_network_sorts_everything_that_is_zeros_and_ones(count: int):
    """A network that sorts all such sequences sorts all sequences; random ones stand for all 2 ** count."""
    values = np.random.default_rng(0).integers(0, 2, (20_000, count))
    for i, j in sorting_network(count):
        values[:, i], values[:, j] = np.minimum(values[:, i], values[:, j]), np.maximum(values[:, i], values[:, j])
    assert (np.diff(values, axis=1) >= 0).all()
