from __future__ import annotations

import numpy as np

import quants

COUNTED = [1, 0, 2, 2, 0, 0, 0, 0, 1, 1, 1, 0, 2, 2, 1, 0, 0, 2, 0, 2, 2, 0, 0, 1, 1, 0, 2, 0, 1, 1, 0, 1]


def test_a_value_without_weight_far_from_all_others_wraps_as_in_ggml():
    """The search closes in on the weighted values; the other's code is then past 2**22, where ggml's rounding wraps."""
    rows, importance = np.zeros((1, 32), np.float32), np.array(COUNTED, np.float32)
    rows[0, 10], rows[0, 22] = -0.0191916, -1.560917
    assert quants.encode("Q5_1", rows, importance)[0].tobytes().hex() == "00820000ffffbfffeeeeeeeeeeee0e" + "ee" * 9
