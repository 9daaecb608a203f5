"""Any options with any logits: a distribution or one line of an error, and no warning (which would fail a test)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quants.errors import GgufToolsError
from runtime.sampling.parameters import LETTERS, LIMITS, Sampling
from runtime.sampling.sampler import Sampler

NUMBERS = [0.0, 1e-30, 1e-7, 0.01, 0.3, 0.5, 1.0, 2.0, 10.0, 1e5, 1e30, 3e38]


def random_options(generator: np.random.Generator, size: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, limit in LIMITS.items():
        for value in generator.permutation([*NUMBERS, *(-number for number in NUMBERS), 3, 40, 1000]).tolist():
            value = int(min(value, 1e6)) if limit.whole else value
            if limit.fits(value):
                options[name] = value
                break
    kept = {name: value for name, value in options.items() if generator.random() < 0.6}
    letters = generator.choice(list(LETTERS.values()), generator.integers(0, 10))
    biased = generator.integers(0, size, generator.integers(0, 3)).tolist()
    biases = {token: float(generator.choice([1.0, -1e30, 1e38, -np.inf])) for token in biased}
    return kept | {"samplers": "".join(letters), "logit_bias": biases}


def random_row(generator: np.random.Generator, size: int) -> np.ndarray:
    row = generator.choice([0, 1e-3, 1, 10, 1e4, 1e30]) * generator.standard_normal(size)
    row = np.round(row) if generator.random() < 0.3 else row  # equal ones
    if generator.random() < 0.4:
        row[generator.random(size) < generator.choice([0.1, 0.9, 0.99])] = -np.inf
    return row.astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_random_options_and_logits(seed):
    generator = np.random.default_rng(seed)
    drawn, errors = 0, []
    for _ in range(100):
        size = int(generator.choice([1, 2, 3, 10, 300, 9000]))
        sampler = Sampler(Sampling(seed=1, **random_options(generator, size)), end_ids=[0])
        sampler.prime(generator.integers(0, max(size, 3), generator.integers(0, 100)).tolist())
        row = random_row(generator, size)
        try:
            for _ in range(3):
                found = sampler.probabilities(row)
                assert found.p.sum() == pytest.approx(1)
                assert (found.p > 0).all()
                assert len(set(found.ids.tolist())) == len(found.ids)
                assert sampler.draw(row) in found.ids
                assert np.isfinite([sampler.state.mu, sampler.state.weighted_sum]).all()
                drawn += 1
        except GgufToolsError as error:
            errors.append(str(error))
    assert drawn > 100
    assert all(error.startswith("no token can be drawn: ") and "\n" not in error for error in errors)
