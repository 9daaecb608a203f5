"""Probabilities beside those of llama.cpp's own samplers: recorded ones, and (marker `verify`) fresh ones."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.sampling.parameters import Sampling
from runtime.sampling.sampler import Sampler

from ...verify.sampling import Case, random_cases, reference, saved


def differences(case: Case, steps) -> np.ndarray:
    """The largest difference of a probability in each row, going from row to row with llama.cpp's tokens."""
    sampler = Sampler(Sampling(**case.options))
    sampler.prime(case.prompt)
    found = []
    for row, (token, ids, p) in zip(case.logits, steps, strict=True):
        distribution = sampler.probabilities(row)
        expected = np.zeros(len(row))
        expected[ids] = p / p.sum()  # llama.cpp's float32 sum may be off by more than we ask for
        found.append(np.abs(distribution.over(len(row)) - expected).max())
        sampler.accept(token, distribution)
    return np.array(found)


def test_a_thousand_rows_as_recorded():
    worst = np.concatenate([differences(case, steps) for case, steps in saved()])
    assert len(worst) == 1000
    assert worst.max() < 1e-5


@pytest.mark.verify
@pytest.mark.parametrize(("vocabulary", "count"), [(300, 500), (5000, 100), (60000, 50)])
def test_fresh_rows(vocabulary, count):
    pytest.importorskip("llama_cpp")
    cases = random_cases(count, seed=1, vocabulary=vocabulary)
    worst = np.concatenate([differences(case, reference(case)) for case in cases])
    assert (worst > 1e-5).mean() < 0.005  # where a cut falls can hang on the last bit of a sum
