"""Choose a format for each weight so that all fit into a number of bytes and their total cost is least.

Input is plain data: the possible sizes of each weight and their costs, which add up. This is the multiple-choice
knapsack problem, solved by dynamic programming: weight after weight, the least cost for every sum of bytes. Bytes are
counted in units that divide all differences, mostly thousands of bytes. Where there would be too many, larger units are
used, and what rounding leaves is filled with the single steps that gain most.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNITS = 1 << 18  # at most: a byte for each of them and each weight is held
FULL = 0.999  # of the budget: a choice that is nearer to it than this
NEGLIGIBLE = 1.05  # is taken where it costs no more than this times the least


class Candidate(NamedTuple):
    """Describe a format that a weight may have: name, bytes, and cost (in nats of KL divergence)."""

    format: str
    nbytes: int
    cost: float


Tables = Mapping[str, Sequence[Candidate]]


def limits(tables: Tables) -> tuple[int, int]:
    """Return the smallest and the largest number of bytes of all weights."""
    sizes = [[each.nbytes for each in candidates] for candidates in tables.values()]
    return sum(map(min, sizes)), sum(map(max, sizes))


def best_within(tables: Tables, budget: int, units: int = UNITS) -> dict[str, Candidate]:
    """Choose a candidate for each weight, with at most `budget` bytes together; all of the smallest must fit.

    The choice costs least. One that costs hardly more is preferred if it uses 99.9 % of the budget and the best does
    not.
    """
    smallest = {name: min(each.nbytes for each in candidates) for name, candidates in tables.items()}
    room = budget - sum(smallest.values())
    unit = max(_unit(tables), -(-room // units), 1)
    steps = {
        name: [-(-(each.nbytes - smallest[name]) // unit) for each in candidates] for name, candidates in tables.items()
    }
    costs, picks = _solved(tables, steps, room // unit)
    chosen, used = {}, _used(costs, (room - (1 - FULL) * budget) / unit)
    for name, pick in zip(reversed(list(tables)), reversed(picks), strict=True):
        chosen[name] = tables[name][pick[used]]
        used -= steps[name][pick[used]]
    chosen = {name: chosen[name] for name in tables}
    _fill(tables, chosen, budget - sum(each.nbytes for each in chosen.values()))
    return chosen


def _unit(tables: Tables) -> int:
    """Return the largest number of bytes that divides all differences between a weight's sizes."""
    return math.gcd(*(each.nbytes - candidates[0].nbytes for candidates in tables.values() for each in candidates))


def _solved(
    tables: Tables, steps: Mapping[str, Sequence[int]], units: int
) -> tuple[NDArray[np.float64], list[NDArray[np.uint8]]]:
    """Return the least cost for each number of units used exactly, and the candidates chosen then.

    The cost is infinite for impossible numbers.
    """
    best, picks = np.full(units + 1, np.inf), []
    best[0] = 0
    for name, candidates in tables.items():
        new, pick = np.full(units + 1, np.inf), np.zeros(units + 1, np.uint8)
        for i, (each, step) in enumerate(zip(candidates, steps[name], strict=True)):
            if step > units:
                continue
            other = best[: units + 1 - step] + each.cost
            better = other < new[step:]
            new[step:][better], pick[step:][better] = other[better], i
        best = new
        picks.append(pick)
    return best, picks


def _used(costs: NDArray[np.float64], enough: float) -> int:
    """Return the best number of units: the first of least cost, or one from `enough` on if that is as good."""
    best, first = int(np.argmin(costs)), max(0, math.ceil(enough))
    if best >= first or first >= len(costs):
        return best
    fuller = first + int(np.argmin(costs[first:]))
    return fuller if costs[fuller] <= NEGLIGIBLE * costs[best] else best


def _fill(tables: Tables, chosen: dict[str, Candidate], left: int) -> None:
    """Spend what rounding left on the candidates that gain most."""
    while True:
        fitting = [
            (chosen[name].cost - each.cost, name, each)
            for name, candidates in tables.items()
            for each in candidates
            if each.cost < chosen[name].cost and 0 < each.nbytes - chosen[name].nbytes <= left
        ]
        if not fitting:
            return
        _, name, best = max(fitting, key=lambda each: each[:2])
        left -= best.nbytes - chosen[name].nbytes
        chosen[name] = best
