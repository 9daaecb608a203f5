"""The choice of formats within so many bytes, beside trying all."""

import math
from itertools import product

import numpy as np
import pytest

from gguftools.calibration.knapsack import NEGLIGIBLE, Candidate, best_within, limits


def tables(rng, weights=5, formats=4, step=1):
    """Weights whose costs fall with their bytes, some of them worse than their neighbours. step: divides all bytes."""
    found = {}
    for i in range(weights):
        sizes = np.cumsum(rng.integers(5, 60, formats)) * step
        costs = np.sort(rng.random(formats))[::-1] * rng.uniform(0.1, 3)
        found[f"w{i}"] = [
            Candidate(f"F{j}", int(n), float(cost)) for j, (n, cost) in enumerate(zip(sizes, costs, strict=True))
        ]
    return found


def budgets(rng, count, **sizes):
    """Weights, and bytes for them that not all can have."""
    for _ in range(count):
        some = tables(rng, **sizes)
        fewest, most = limits(some)
        yield some, int(fewest + (most - fewest) * rng.random())


def nbytes(chosen):
    return sum(each.nbytes for each in chosen)


def cost(chosen):
    return sum(each.cost for each in chosen)


def all_within(some, budget):
    return [each for each in product(*some.values()) if nbytes(each) <= budget]


@pytest.mark.parametrize("step", [1, 6912])
def test_the_choice_is_the_best_of_all(step):
    for some, budget in budgets(np.random.default_rng(2), 30, step=step):
        chosen = best_within(some, budget)
        assert list(chosen) == list(some)
        assert all(each in some[name] for name, each in chosen.items())
        every = all_within(some, budget)
        least = min(map(cost, every))
        full = [each for each in every if nbytes(each) >= 0.999 * budget]
        fuller = full and min(map(cost, full)) <= NEGLIGIBLE * least
        wanted = min(map(cost, full)) if fuller else least
        assert cost(chosen.values()) == pytest.approx(wanted, rel=1e-12)
        assert nbytes(chosen.values()) <= budget


def test_in_coarse_units_it_fits_and_is_close_to_the_best():
    excess = []
    for some, budget in budgets(np.random.default_rng(4), 30):
        chosen = best_within(some, budget, units=40).values()
        assert nbytes(chosen) <= budget
        excess.append(cost(chosen) / min(map(cost, all_within(some, budget))) - 1)
    assert np.median(excess) < 0.1


def test_what_rounding_leaves_is_spent():
    some = {
        "a": [Candidate("small", 100, 1.0), Candidate("large", 151, 0.5)],
        "b": [Candidate("one", 7, 0.0), Candidate("other", 8, 0.0)],
    }
    assert best_within(some, 158, units=10)["a"].format == "large"  # in units of 6 bytes it does not fit
    assert best_within(some, 157, units=10)["a"].format == "small"


def test_sizes_are_met_to_a_thousandth_where_weights_are_many():
    for some, budget in budgets(np.random.default_rng(5), 20, weights=60, formats=6, step=512):
        assert nbytes(best_within(some, budget).values()) >= 0.999 * budget


def test_a_fuller_choice_is_taken_where_it_costs_hardly_more():
    some = {"a": [Candidate("small", 5000, 1.0), Candidate("large", 10000, 1.04)]}
    assert best_within(some, 10001)["a"].format == "large"
    some["a"][1] = Candidate("large", 10000, 1.06)
    assert best_within(some, 10001)["a"].format == "small"
    assert best_within(some, 9999)["a"].format == "small"


def test_no_byte_is_wasted_on_what_costs_more():
    some = [("a", 10, 1.0), ("b", 10, 2.0), ("c", 12, 1.5), ("d", 20, 0.5)]
    candidates = {"w": [Candidate(*each) for each in some]}
    assert best_within(candidates, 19)["w"].format == "a"
    assert best_within(candidates, 20)["w"].format == "d"


def test_of_equal_choices_the_first_is_taken():
    same = [Candidate("a", 10, 1.0), Candidate("b", 20, 0.5)]
    assert [each.format for each in best_within({"v": same, "w": same}, 30).values()] == ["b", "a"]
    same = [Candidate("a", 10, 1.0), Candidate("b", 10, 1.0)]
    assert best_within({"w": same}, 10)["w"].format == "a"


def test_all_that_can_be_had_is_had_when_there_is_room():
    some = tables(np.random.default_rng(3))
    _, most = limits(some)
    for budget in (most, 10 * most):
        assert {name: c.format for name, c in best_within(some, budget).items()} == dict.fromkeys(some, "F3")


def test_limits():
    some = tables(np.random.default_rng(6))
    sizes = [nbytes(each) for each in product(*some.values())]
    assert limits(some) == (min(sizes), max(sizes))
    assert nbytes(best_within(some, min(sizes)).values()) == min(sizes)
    assert math.isclose(cost(best_within(some, min(sizes)).values()), cost(each[0] for each in some.values()))
