"""The choice of formats within so many bytes, beside trying all."""

from itertools import pairwise, product

import numpy as np

from gguftools.calibration.hull import Candidate, best_within, limits, lower_hull, slope


def tables(rng, weights=5, formats=4):
    """Weights whose costs fall with their bytes, some of them worse than their neighbours."""
    found = {}
    for i in range(weights):
        sizes = np.cumsum(rng.integers(5, 60, formats))
        costs = np.sort(rng.random(formats))[::-1] * rng.uniform(0.1, 3)
        found[f"w{i}"] = [
            Candidate(f"F{j}", int(n), float(cost)) for j, (n, cost) in enumerate(zip(sizes, costs, strict=True))
        ]
    return found


def test_the_hull_is_what_is_best_for_some_price():
    rng = np.random.default_rng(1)
    for candidates in tables(rng, weights=40, formats=8).values():
        hull = lower_hull(candidates)
        for price in np.logspace(-6, 2, 4000):
            assert min(candidates, key=lambda each: each.cost + price * each.nbytes) in hull
        slopes = [slope(a, b) for a, b in pairwise(hull)]
        assert slopes == sorted(slopes, reverse=True)


def test_what_costs_more_and_is_larger_is_never_chosen():
    some = [("a", 10, 1.0), ("b", 10, 2.0), ("c", 12, 1.5), ("d", 20, 0.5)]
    hull = lower_hull([Candidate(*each) for each in some])
    assert [each.format for each in hull] == ["a", "d"]


def test_choices_fit_and_are_close_to_the_best_of_all():
    rng = np.random.default_rng(2)
    excess = []
    for _ in range(30):
        some = tables(rng)
        fewest, most = limits(some)
        budget = int(fewest + (most - fewest) * rng.random())
        chosen = best_within(some, budget)
        assert sum(each.nbytes for each in chosen.values()) <= budget
        every = [each for each in product(*some.values()) if sum(c.nbytes for c in each) <= budget]
        best = min(sum(c.cost for c in each) for each in every)
        excess.append(sum(each.cost for each in chosen.values()) / best - 1)
    assert np.median(excess) < 0.05
    assert max(excess) < 0.6


def test_all_that_can_be_had_is_had_when_there_is_room():
    some = tables(np.random.default_rng(3))
    _, most = limits(some)
    assert {name: c.format for name, c in best_within(some, most).items()} == dict.fromkeys(some, "F3")
