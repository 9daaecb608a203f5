"""Probabilities in and out of each sampler, as llama.cpp's tests/test-sampling.cpp has them (b11434): same figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runtime.sampling.candidates import Candidates, candidates, softmax
from runtime.sampling.dry import dry
from runtime.sampling.penalties import penalties
from runtime.sampling.temperature import dynamic_temperature, temperature
from runtime.sampling.truncation import min_p, top_k, top_n_sigma, top_p, typical, xtc

RISING = (0.1, 0.2, 0.3, 0.4)
FALLING = RISING[::-1]
FOUR, FIVE = (0.25,) * 4, (0.2,) * 5
TRUNCATIONS = [
    (temperature, RISING, RISING, 1.0),
    (temperature, RISING, (0, 0, 0, 1.0), 0.0),
    (dynamic_temperature, RISING, RISING, 1.0, 0.0, 1.0),
    (dynamic_temperature, RISING, (0, 0, 0, 1.0), 0.0, 0.0, 1.0),
    (top_k, RISING, (1.0,), 1),
    (top_k, RISING, (0.44444, 0.33333, 0.22222), 3),
    (top_k, RISING, FALLING, 4),
    (top_k, RISING, RISING, 0),
    (top_p, RISING, (1.0,), 0.0),
    (top_p, RISING, (0.571429, 0.428571), 0.7),
    (top_p, RISING, (0.44444, 0.33333, 0.22222), 0.8),
    (top_p, RISING, RISING, 1.0),
    (min_p, RISING, RISING, 0.0),
    (min_p, RISING, RISING, 0.24),
    (min_p, RISING, (0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9), 0.26),
    (min_p, RISING, (0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9), 0.49),
    (min_p, RISING, (0.3 / 0.7, 0.4 / 0.7), 0.51),
    (min_p, RISING, (0.3 / 0.7, 0.4 / 0.7), 0.74),
    (min_p, RISING, (1.0,), 0.76),
    (min_p, RISING, (1.0,), 1.0),
    (min_p, RISING, (1.0,), 1.05),
    (top_n_sigma, RISING, (0, 0, 0.428571, 0.571429), 1.0),
    (top_n_sigma, RISING, RISING, 0.0),
    (top_n_sigma, RISING, RISING, 3.0),
]
# What test-sampling.cpp compares of these are probabilities from before the sampler: they do not sum to 1.
UNSCALED = [
    (xtc, FALLING, (0.1,), 0.09),
    (xtc, FALLING, (0.2, 0.1), 0.19),
    (xtc, FALLING, (0.3, 0.2, 0.1), 0.29),
    (xtc, FALLING, FALLING, 0.39),
    (typical, (0.97, 0.01, 0.01, 0.01), (0.97,), 0.5),
    (typical, (0.4, 0.2, 0.2, 0.2), (0.2, 0.2, 0.2), 0.5),
]
PENALTIES = [  # tokens seen, expected, repeat, frequency, presence
    ((0,), (0, 0.25, 0.25, 0.25, 0.25), 50.0, 0.0, 0.0),
    ((0, 1, 2), (0, 0, 0, 0.5, 0.5), 50.0, 0.0, 0.0),
    ((0, 1, 2, 0, 0), (0, 0, 0, 0.5, 0.5), 50.0, 0.0, 0.0),
    ((0,), (0.000011, 0.249997, 0.249997, 0.249997, 0.249997), 1.0, 5.0, 5.0),
    ((0, 1, 2), (0.000023, 0.000023, 0.000023, 0.499966, 0.499966), 1.0, 5.0, 5.0),
    ((0, 1, 2, 0, 0), (0.000000, 0.000023, 0.000023, 0.499977, 0.499977), 1.0, 5.0, 5.0),
]
DRY = [  # probabilities, tokens seen, expected, multiplier, base, allowed, breakers
    (FOUR, (0, 1), FOUR, 1.0, 1.1, 2, {}),
    (FOUR, (0, 1, 2, 0, 1), (0.296923, 0.296923, 0.109232, 0.296923), 1.0, 1.1, 2, {}),
    (FIVE, (0, 1, 3, 4, 0, 1), FIVE, 1.0, 1.1, 2, {3: [()]}),
    (FIVE, (0, 1, 2, 0, 1), (0.241818, 0.241818, 0.032727, 0.241818, 0.241818), 2.0, 1.1, 2, {}),
    (FIVE, (0, 1, 2, 3, 4, 0, 1), FIVE, 1.0, 1.1, 4, {}),
]
QUEUES = [  # letters, k, p, min-p
    ("k", 10000, 1.0, 1.0),
    ("k", 1, 1.0, 1.0),
    ("p", 10000, 1.0, 1.0),
    ("p", 10000, 0.0, 1.0),
    ("m", 10000, 1.0, 1.0),
    ("m", 10000, 1.0, 1e-12),
    ("k", 100, 1.0, 1.0),
    ("p", 10000, 0.0003, 1.0),
    ("p", 10000, 0.8, 1.0),
    ("m", 10000, 1.0, 9997.9 / 9999),
    ("m", 10000, 1.0, 0.1),
    ("kp", 100, 0.8, 0.1),
    ("km", 100, 0.8, 0.1),
    ("pk", 100, 0.8, 0.1),
    ("pm", 100, 0.8, 0.1),
    ("mk", 100, 0.8, 0.1),
    ("mp", 100, 0.8, 9997.9 / 9999),
    ("mp", 100, 0.8, 0.1),
    ("kpm", 100, 0.8, 0.1),
    ("kmp", 100, 0.8, 0.1),
    ("pkm", 100, 0.8, 0.1),
    ("pmk", 100, 0.8, 0.1),
    ("mkp", 100, 0.8, 0.1),
    ("mpk", 100, 0.8, 0.1),
]
SIZE = 10000


def of_probabilities(values) -> Candidates:
    return candidates(np.log(np.array(values, np.float32)))


def names(case) -> str:
    return f"{case[0].__name__}-{'-'.join(map(str, case[3:]))}"


@pytest.mark.parametrize("case", TRUNCATIONS, ids=names)
def test_probabilities_after_one_sampler(case):
    sampler, before, after, *numbers = case
    assert softmax(sampler(of_probabilities(before), *numbers).logits) == pytest.approx(after, abs=1e-5)


@pytest.mark.parametrize("case", UNSCALED, ids=names)
def test_what_one_sampler_leaves(case):
    sampler, before, after, *numbers = case
    left = sampler(of_probabilities(before), *numbers)
    assert [before[token] for token in left.ids] == pytest.approx(after, abs=1e-5)


@pytest.mark.parametrize("case", PENALTIES, ids=str)
def test_penalties(case):
    seen, after, *numbers = case
    left = penalties(of_probabilities(FIVE), np.array(seen), *numbers)
    assert softmax(left.logits) == pytest.approx(after, abs=1e-5)


@pytest.mark.parametrize("case", DRY, ids=str)
def test_dry(case):
    before, seen, after, *numbers = case
    left = dry(of_probabilities(before), np.array(seen), *numbers)
    assert softmax(left.logits) == pytest.approx(after, abs=1e-5)


def expected_of_queue(letters: str, k: int, p: float, share: float) -> set[int]:
    """By whole numbers: token i of 10,000 has the weight i."""
    tokens = list(range(SIZE - 1, -1, -1))
    for letter in letters:
        if letter == "k":
            tokens = tokens[:k]
        elif letter == "p" and p < 1:
            target, total, count = math.ceil(p * sum(tokens)), 0, 0
            while not count or total < target:
                total, count = total + tokens[count], count + 1
            tokens = tokens[:count]
        elif letter == "m":
            tokens = [token for token in tokens if token >= share * tokens[0]]
    return set(tokens)


@pytest.mark.parametrize("case", QUEUES, ids=str)
def test_queues(case):
    letters, k, p, share = case
    with np.errstate(divide="ignore"):
        left = of_probabilities(range(SIZE))
    samplers = {"k": (top_k, k), "p": (top_p, p, 1), "m": (min_p, share, 1)}
    for letter in letters:
        sampler, *numbers = samplers[letter]
        left = sampler(left, *numbers)
    assert set(left.ids.tolist()) == expected_of_queue(letters, k, p, share)
    if left.ordered:
        assert left.ids[0] == SIZE - 1
        assert left.ids[-1] == min(left.ids)
