"""Which format each weight gets so that all fit into so many bytes and what they lose together is least.

Plain data: of each weight the sizes that it can have and what each costs; costs add up. The best choices lie on the
lower hull of each weight's sizes and costs, and its edges, taken from the steepest on, give the best choice for every
sum of bytes that they pass by. What is left then is filled with the single steps that gain most.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple


class Candidate(NamedTuple):
    """A format that a weight may have: its name, bytes, and what it costs (in nats of KL divergence)."""

    format: str
    nbytes: int
    cost: float


class Step(NamedTuple):
    """An edge of a weight's hull: what a byte saves on it, and where it leads."""

    slope: float
    weight: str
    to: Candidate


def lower_hull(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that are best for some price of a byte, from the smallest to the largest."""
    hull: list[Candidate] = []
    for each in sorted(candidates, key=lambda each: (each.nbytes, each.cost)):
        if hull and each.cost >= hull[-1].cost:
            continue
        while len(hull) > 1 and slope(hull[-2], hull[-1]) <= slope(hull[-2], each):
            hull.pop()
        if hull and hull[-1].nbytes == each.nbytes:
            hull.pop()
        hull.append(each)
    return hull


def slope(small: Candidate, large: Candidate) -> float:
    """What a byte saves on the way from one to a larger one."""
    return (small.cost - large.cost) / max(1, large.nbytes - small.nbytes)


def limits(tables: Mapping[str, Sequence[Candidate]]) -> tuple[int, int]:
    """The fewest and the most bytes that all weights can have."""
    sizes = [[each.nbytes for each in candidates] for candidates in tables.values()]
    return sum(map(min, sizes)), sum(map(max, sizes))


def best_within(tables: Mapping[str, Sequence[Candidate]], budget: int) -> dict[str, Candidate]:
    """Of each weight a candidate, together `budget` bytes at most, which all of the smallest must not exceed."""
    hulls = {name: lower_hull(candidates) for name, candidates in tables.items()}
    chosen = {name: hull[0] for name, hull in hulls.items()}
    left = budget - sum(each.nbytes for each in chosen.values())
    steps = [
        Step(slope(small, large), name, large)
        for name, hull in hulls.items() for small, large in pairwise(hull)
    ]  # fmt: skip
    stopped: set[str] = set()
    for step in sorted(steps, key=lambda step: -step.slope):
        more = step.to.nbytes - chosen[step.weight].nbytes
        if step.weight in stopped or more > left:
            stopped.add(step.weight)
            continue
        chosen[step.weight], left = step.to, left - more
    _fill(tables, chosen, left)
    return chosen


def _fill(tables: Mapping[str, Sequence[Candidate]], chosen: dict[str, Candidate], left: int) -> None:
    """Spend what is left on the candidates that gain most, on the hull or not."""
    while True:
        fitting = [
            (chosen[name].cost - each.cost, name, each)
            for name, candidates in tables.items() for each in candidates
            if each.cost < chosen[name].cost and each.nbytes - chosen[name].nbytes <= left
        ]  # fmt: skip
        if not fitting:
            return
        _, name, best = max(fitting, key=lambda each: each[:2])
        left -= best.nbytes - chosen[name].nbytes
        chosen[name] = best
