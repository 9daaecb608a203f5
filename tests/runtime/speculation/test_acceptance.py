"""What comes out of drafts is distributed as the model says, whatever they were drawn from."""

from itertools import product

import numpy as np
import pytest

from runtime.sampling.sampler import Distribution
from runtime.speculation.acceptance import (
    Candidate,
    acceptance_rate,
    accepts,
    drawn,
    residual,
    verify,
    verify_typically,
)

SIZE = 6


def distribution(seed: int, zeros: int = 0) -> Distribution:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(SIZE, 0.7))
    p[rng.permutation(SIZE)[:zeros]] = 0
    return Distribution(np.flatnonzero(p), p[p > 0] / p.sum())


def without(q: Distribution, tokens: tuple[int, ...]) -> Distribution:
    kept = ~np.isin(q.ids, tokens)
    return Distribution(q.ids[kept], q.p[kept] / q.p[kept].sum())


def stands(p: Distribution, candidate: Candidate) -> float:
    """The probability with which a candidate stands, by bisection of what `accepts` says."""
    low, high = 0.0, 1.0
    if accepts(p, candidate, np.nextafter(1.0, 0.0)):
        return 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if accepts(p, candidate, middle) else (low, middle)
    return low


def outcome(p: Distribution, candidates: list[Candidate]) -> np.ndarray:
    """The distribution of what comes for these candidates, by `verify`, over its random numbers."""
    found, weight = np.zeros(SIZE), 1.0
    for place, candidate in enumerate(candidates):
        share = stands(p, candidate)
        token, which = verify(p, [candidate], iter([share / 2] * 3).__next__)
        assert share < 1e-9 or (token, which) == (candidate.token, 0), place
        found[candidate.token] += weight * share
        weight *= 1 - share
        if weight < 1e-12:
            return found
        p = residual(p, candidate.q or Distribution(np.array([candidate.token]), np.ones(1)))
    return found + weight * p.over(SIZE)


@pytest.mark.parametrize("replaced", [True, False], ids=["with replacement", "without replacement"])
@pytest.mark.parametrize("seed", range(6))
def test_several_drawn_candidates_leave_the_distribution_as_it_is(seed: int, replaced: bool):
    p, q = distribution(seed, zeros=seed % 3), distribution(100 + seed, zeros=seed % 2)
    total = np.zeros(SIZE)
    for tokens in product(range(SIZE), repeat=3):
        candidates, odds, before = [], 1.0, ()
        for token in tokens:
            own = q if replaced else without(q, before)
            odds *= own.of(token)
            candidates.append(Candidate(token, own))
            before = (*before, token)
            if odds == 0:
                break
        if odds:
            total += odds * outcome(p, candidates)
    np.testing.assert_allclose(total, p.over(SIZE), atol=1e-9)


def test_one_candidate_stands_as_often_as_the_distributions_overlap():
    p, q = distribution(1), distribution(2)
    often = sum(q.of(token) * stands(p, Candidate(token, q)) for token in range(SIZE))
    assert often == pytest.approx(acceptance_rate(p, q), abs=1e-9)
    assert acceptance_rate(p, p) == pytest.approx(1)


def drawn_often(p: Distribution, q: Distribution | None, children: int, draws: int) -> tuple[np.ndarray, int]:
    """How often each token came, and how often the first candidate stood."""
    rng, counts, stood = np.random.default_rng(5), np.zeros(SIZE), 0
    for _ in range(draws):
        tokens = [0, 3][:children] if q is None else [drawn(q, rng.random()) for _ in range(children)]
        verdict = verify(p, [Candidate(token, q) for token in tokens], rng.random)
        counts[verdict.token] += 1
        stood += verdict.candidate == 0
    return counts, stood


@pytest.mark.parametrize("children", [1, 2])
@pytest.mark.parametrize("q", [distribution(2), distribution(3, zeros=3), None], ids=["full", "cut", "found"])
def test_draws_are_those_of_the_model(q: Distribution | None, children: int):
    p, draws = distribution(1), 8000
    counts, stood = drawn_often(p, q, children, draws)
    expected = p.over(SIZE) * draws
    assert ((counts - expected) ** 2 / expected).sum() < 25  # of 5 degrees of freedom: p = 0.00014
    rate = p.of(0) if q is None else acceptance_rate(p, q)
    assert abs(stood / draws - rate) < 4 * np.sqrt(rate * (1 - rate) / draws)


def test_the_rest_of_equal_distributions_is_the_distribution():
    p = distribution(4)
    assert residual(p, p) is p


def test_without_chance_in_the_draft_the_same_number_gives_the_same_token():
    p = distribution(1)
    for u in np.linspace(0, 0.999, 50):
        token = drawn(p, u)
        assert verify(p, [Candidate(1), Candidate(4)], iter([u]).__next__).token == token


def test_typical_acceptance_takes_what_is_likely_enough():
    p = Distribution(np.arange(4), np.array([0.5, 0.4, 0.08, 0.02]))
    take = [verify_typically(p, [Candidate(token)], iter([0.0]).__next__) for token in range(4)]
    assert take == [(0, 0), (1, 0), (0, None), (0, None)]
    assert verify_typically(p, [Candidate(2)], iter([0.0]).__next__, epsilon=0.05).candidate == 0
    assert verify_typically(p, [Candidate(2)], iter([0.0]).__next__, delta=0.1).candidate == 0  # 0.1 e^-0.97 = 0.038


def test_a_token_that_its_distribution_does_not_have_is_an_error():
    with pytest.raises(ValueError, match="token 5 was not drawn"):
        accepts(distribution(1), Candidate(5, Distribution(np.arange(2), np.full(2, 0.5))), 0.5)
