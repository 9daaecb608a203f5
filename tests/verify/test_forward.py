"""Keys of equal scores are chosen as torch chooses them, and named."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.verify


def test_ties_are_named_and_what_is_decided_stays() -> None:
    from .forward import ties_as_torch  # imports torch, which a plain installation has not

    scores = np.array([[3, 2, 1, *[0] * 61], range(64, 0, -1)], np.float32)
    with ties_as_torch() as ties:
        chosen = np.argpartition(-scores, 3, axis=1)[:, :4]
    assert np.array_equal(np.sort(np.take_along_axis(scores, chosen, 1)), [[0, 1, 2, 3], [61, 62, 63, 64]])
    assert ties == ["keys of token 0 tie at 0, 0.0e+00 apart"]
