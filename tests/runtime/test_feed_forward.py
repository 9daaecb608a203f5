"""Which neurons a predictor marks."""

from __future__ import annotations

import numpy as np
import pytest

from quants import from_array
from runtime.feed_forward import predicted
from runtime.layer import Layer, Sparsity

FIRST = np.array([[1, 0], [0, 1]], np.float32)
SECOND = np.array([[1, 0], [0, 2], [-1, 0]], np.float32)
LAYER = Layer("blk.0.", {"fc1.weight": from_array("fc1", FIRST), "fc2.weight": from_array("fc2", SECOND)})
X = np.array([[3, 1], [-5, 1], [-1, -1]], np.float32)  # scores: (3, 2, -3), (0, 2, 0), (0, 0, 0)


@pytest.mark.parametrize(
    ("threshold", "marked"),
    [
        (0.0, [[1, 1, 0], [1, 1, 1], [1, 1, 1]]),  # as PowerInfer: not below the threshold
        (2.0, [[1, 1, 0], [0, 1, 0], [0, 0, 0]]),
        (-4.0, [[1, 1, 1]] * 3),
    ],
)
def test_marked(threshold, marked):
    sparsity = Sparsity(threshold)
    assert predicted(LAYER, X, sparsity).astype(int).tolist() == marked
    assert (sparsity.marked, sparsity.neurons) == (int(np.sum(marked)), 9)
    assert sparsity.skipped == pytest.approx(1 - np.mean(marked))
    assert Sparsity().skipped == 0
