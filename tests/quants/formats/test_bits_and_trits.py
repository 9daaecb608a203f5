"""Q1_0, Q2_0, TQ1_0, TQ2_0: one to a few bits a value under one scale."""

from __future__ import annotations

import numpy as np
import pytest

import quants


@pytest.mark.parametrize(("name", "width"), [("Q2_0", 64), ("TQ1_0", 256), ("TQ2_0", 256)])
def test_three_levels_come_back_exactly(name: str, width: int):
    rows = np.random.default_rng(0).integers(-1, 2, (37, width)).astype(np.float32) * np.float32(0.25)
    rows[:, 0] = 0.25
    assert np.array_equal(quants.decode(name, quants.encode(name, rows)), rows)


def test_q1_0_keeps_signs_and_the_mean_size():
    rows = np.tile(np.array([1, -3, 0.0, -0.0], np.float32), (2, 64))
    decoded = quants.decode("Q1_0", quants.encode("Q1_0", rows))
    assert np.array_equal(decoded, np.tile(np.array([1, -1, 1, 1], np.float32), (2, 64)))


def test_q2_0_decodes_the_level_that_is_never_written():
    raw = np.full((1, 18), 0xFF, np.uint8)
    raw[0, :2] = np.array([1.5], np.float16).view(np.uint8)
    assert (quants.decode("Q2_0", raw) == 3).all()


def test_halves_round_away_from_zero():
    row = np.zeros((1, 64), np.float32)
    row[0, :5] = 1, 0.5, -0.5, np.nextafter(np.float32(0.5), np.float32(0)), 0.4
    assert quants.decode("Q2_0", quants.encode("Q2_0", row))[0, :5].tolist() == [1, 1, -1, 0, 0]
