from __future__ import annotations

import numpy as np

import quants
from quants.formats.iq3_s import BLOCK


def test_groups_after_a_zero_group_move_forward():
    """So the reference does; whoever mends it here writes other bytes than everyone else."""
    rows = np.random.default_rng(0).standard_normal((1, 256)).astype(np.float32)
    whole = quants.encode("IQ3_S", rows).view(BLOCK)[0, 0]
    rows[0, 32:64] = 0
    gap = quants.encode("IQ3_S", rows).view(BLOCK)[0, 0]
    assert np.array_equal(gap["qs"][:8], whole["qs"][:8])
    assert np.array_equal(gap["qs"][8:56], whole["qs"][16:])
    assert np.array_equal(gap["signs"][4:28], whole["signs"][8:])
    assert not gap["qs"][56:].any()
    assert not gap["signs"][28:].any()
