from __future__ import annotations

import numpy as np
import pytest

from quants.kernels.hadamard import rotate_groups

H4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2


@pytest.mark.parametrize("passes", [1, 2, 3, 4, 5])
def test_each_group_is_multiplied_by_the_matrix(passes: int) -> None:
    matrix = np.ones((1, 1))
    for _ in range(passes):
        matrix = np.kron(matrix, H4)
    values = np.random.default_rng(passes).standard_normal((6, 4**passes)).astype(np.float32)
    turned = values.copy()
    rotate_groups(turned.reshape(-1), 4**passes)
    np.testing.assert_allclose(turned, values @ matrix, atol=2e-6)
    rotate_groups(turned.reshape(-1), 4**passes)
    np.testing.assert_allclose(turned, values, atol=2e-6)


def test_whole_numbers_are_rotated_without_rounding() -> None:
    values = np.arange(64, dtype=np.float32) * 8
    matrix = np.kron(np.kron(H4, H4), H4)
    wanted = values @ matrix
    rotate_groups(values, 64)
    np.testing.assert_array_equal(values, wanted)
    rotate_groups(values[:0], 64)
