"""Draws beside those of a C++ compiler's library, whose numbers are given here."""

from __future__ import annotations

from itertools import islice

import pytest

from gguftools.measurement.tasks.drawing import _below, picked, raw_numbers, shuffled
from quants.errors import OptionError


def test_the_standard_says_the_ten_thousandth_number():
    """[rand.predef] of C++, for the default seed."""
    assert next(islice(raw_numbers(5489), 9999, None)) == 4123659995


def test_as_libstdcxx_draws():
    """Of GCC 12, by the loops of llama-perplexity; below 3e9 some numbers are rejected."""
    tasks = [4187, 10012, 7232, 9361, 1, 1285, 3034, 10025, 1472, 2368, 926, 3978]
    numbers = raw_numbers(1)
    assert [_below(numbers, 10042 - i) for i in range(12)] == tasks
    large = [
        1251065995,
        2991554423,
        2160973466,
        2797672080,
        384373342,
        906997701,
        440267676,
        277015785,
        558780632,
        1190302402,
        2806617208,
        1616450189,
    ]
    numbers = raw_numbers(1)
    assert [_below(numbers, 3_000_000_000 - i) for i in range(12)] == large
    assert picked(1267, 12) == [528, 1262, 911, 1178, 0, 161, 381, 1258, 184, 296, 116, 498]


def test_all_in_their_order_or_some_in_none():
    assert picked(5, None) == picked(5, 5) == picked(5, 9) == [0, 1, 2, 3, 4]
    assert len(set(picked(100, 99))) == 99
    assert sorted(shuffled(50, 50)) == list(range(50)) != shuffled(50, 50)
    assert shuffled(1000, 7) == shuffled(1000, 700)[:7]
    assert shuffled(1000, 7) != shuffled(1000, 7, seed=2)


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_seeds_have_32_bits(seed):
    with pytest.raises(OptionError, match="seed is"):
        next(raw_numbers(seed))
