from __future__ import annotations

import itertools

import numpy as np

from quants.kernels.iq4 import LEVELS, MIDDLES, TRIES


def test_a_value_crosses_one_middle_at_most_over_all_tries():
    """What the search takes for granted: its scales span less than any two neighbouring middles of one sign."""
    span = (abs(LEVELS[0]) + TRIES) / (abs(LEVELS[0]) - TRIES)
    for side in ([m for m in MIDDLES if m > 0], [-m for m in reversed(MIDDLES) if m < 0]):
        assert min(b / a for a, b in itertools.pairwise(side)) > span


def test_middles_are_exact():
    assert all(2 * float(m) == float(a) + float(b) for m, a, b in zip(MIDDLES, LEVELS, LEVELS[1:], strict=False))
    assert np.all(np.diff(MIDDLES) > 0)
