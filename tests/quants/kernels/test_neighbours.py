from __future__ import annotations

import numpy as np
import pytest

from quants.kernels.grids import EVEN_SIGNS, grid_levels, grid_values
from quants.kernels.neighbours import neighbours

LISTS = {"IQ1_S": 3, "IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 1, "IQ3_XXS": 2, "IQ3_S": 3}


def levels_of(number: int, count: int) -> np.ndarray:
    radix = 3 if count == 8 else 8
    return number // radix ** np.arange(count) % radix


@pytest.mark.parametrize("name", LISTS)
def test_lists_hold_all_points_at_the_least_distances(name: str):
    points, tables = grid_levels(name).astype(int), neighbours(name, LISTS[name])
    for number in range(0, len(tables.entries), 13):
        start, length, short, short_length = tables.entries[number]
        squares = ((points - levels_of(number, points.shape[1])) ** 2).sum(1)
        if not length:
            assert squares[start >> 16] == 0
            assert short_length == 0
            continue
        nearest = np.isin(squares, np.unique(squares)[: LISTS[name]])
        expected = sorted(np.flatnonzero(nearest), key=lambda p: (squares[p], p))
        assert tables.indexes[start : start + length].tolist() == expected
        kept = tables.indexes[short : short + short_length].tolist()
        assert kept == [p for p in expected if p in set(kept)]


@pytest.mark.parametrize("name", ["IQ2_XS", "IQ3_S"])
def test_short_lists_leave_out_what_cannot_be_nearest(name: str):
    """Whatever the values that round to a combination, the nearest of its list is in its short list."""
    random, points, tables = np.random.default_rng(1), grid_levels(name).astype(int), neighbours(name, LISTS[name])
    top = points.max()
    for number in random.integers(0, len(tables.entries), 400):
        start, length, short, short_length = tables.entries[number]
        if not length:
            continue
        levels = levels_of(number, points.shape[1])
        away = random.uniform(-0.5, 0.5, levels.shape)
        away += np.where(levels == top, random.exponential(size=levels.shape), 0)
        errors = ((points - levels - away) ** 2 * random.exponential(size=levels.shape)).sum(1)
        listed = tables.indexes[start : start + length]
        assert listed[errors[listed].argmin()] in tables.indexes[short : short + short_length]


def test_codes_are_those_of_the_points():
    points, tables = grid_levels("IQ3_XXS").astype(int), neighbours("IQ3_XXS", 2)
    start, length = tables.entries[np.flatnonzero(tables.entries[:, 1])[5], :2]
    codes = (points << np.arange(4) * 3).sum(1)
    assert tables.codes[start : start + length].tolist() == codes[tables.indexes[start : start + length]].tolist()


def test_grids_are_those_of_the_files():
    assert {name: grid_values(name).shape for name in LISTS} == {
        "IQ1_S": (2048, 8),
        "IQ2_XXS": (256, 8),
        "IQ2_XS": (512, 8),
        "IQ2_S": (1024, 8),
        "IQ3_XXS": (256, 4),
        "IQ3_S": (512, 4),
    }
    for name in LISTS:
        assert len(np.unique(grid_values(name), axis=0)) == len(grid_values(name))
        assert not grid_levels(name)[0].any() or name == "IQ3_S"


def test_eighth_sign_makes_negative_ones_even():
    assert all(int(bits).bit_count() % 2 == 0 for bits in EVEN_SIGNS)
    assert (EVEN_SIGNS & 127).tolist() == list(range(128))
