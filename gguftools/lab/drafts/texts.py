"""A draft's figures on texts at one temperature, from the chances of acceptance at each position."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...measurement.corpus import Corpus
from .acceptance import Acceptance
from .figures import (
    Chances,
    Costs,
    best_length,
    independent_chances,
    independent_tokens,
    lookup_chances,
    mean_cycle,
    speedup,
)
from .report import TemperatureFigures

if TYPE_CHECKING:
    from runtime.evaluation.windows import Window

USUAL_LENGTH = 3  # draft length if none is faster
Places = list[list[slice]]
ALL = slice(None)


def places(windows: Sequence["Window"]) -> Places:
    """Return for each window the ranges of its consecutive predictions."""
    parts_by_window = []
    for window in windows:
        ends = [*(np.flatnonzero(np.diff(window.scored) != 1) + 1).tolist(), len(window.scored)]
        parts_by_window.append([slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)])
    return parts_by_window


def parts(values: Sequence[NDArray[Any]], where: Places) -> list[NDArray[Any]]:
    """Return values of windows' predictions, split into consecutive ones."""
    return [each[part] for each, of in zip(values, where, strict=True) for part in of]


def chances(
    acceptance: Acceptance, i: int, where: Places, longest: int, which: slice = ALL, written: bool = False
) -> Chances:
    """Return the chances at temperature number i, of some windows. written: the text was generated with this draft."""

    def column(values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return [part[:, i] for part in parts(values[which], where[which])]

    if not acceptance.drafted:
        return independent_chances(column(acceptance.stands), longest)
    matched, drafted = (parts(each[which], where[which]) for each in (acceptance.matched, acceptance.drafted))
    return lookup_chances(column(acceptance.own), column(acceptance.missed), matched, drafted, longest, written)


def temperature_figures(
    acceptance: Acceptance, i: int, temperature: float, corpus: Corpus, longest: int, costs: Costs
) -> TemperatureFigures:
    """Return all figures but those of a simulation. i: the number of the temperature."""
    from runtime.evaluation.statistics import by_position

    where = places(corpus.windows)
    of_all = chances(acceptance, i, where, longest)
    every = [each for length in range(1, longest + 1) if (each := mean_cycle(of_all, length)) is not None]
    best = best_length(every, costs)
    mean, stands, offered = _acceptance(acceptance, i, ALL)
    at = np.concatenate([window.scored for window in corpus.windows])[offered]
    positions = by_position(stands, at) if len(at) else {"edges": [], "kl_mean": []}
    length = best.length if best else min(USUAL_LENGTH, longest)
    texts = {}
    begin = 0
    for name, windows in corpus.by_text().items() if len(corpus.texts) > 1 else ():
        texts[name] = _of_text(acceptance, i, where, slice(begin, begin + len(windows)), length)
        begin += len(windows)
    return TemperatureFigures(
        temperature,
        mean or {"mean": 0.0, "standard_error": 0.0},
        [each.tokens for each in every],
        [each.standard_error for each in every],
        None
        if acceptance.drafted or mean is None
        else [independent_tokens(mean["mean"], each.length) for each in every],
        every[-1].accepted if every else [],
        [speedup(each, costs) for each in every],
        best.length if best else 0,
        {"edges": positions["edges"], "mean": positions["kl_mean"]},
        texts,
    )


def _acceptance(
    acceptance: Acceptance, i: int, which: slice
) -> tuple[dict[str, float] | None, NDArray[np.float64], NDArray[np.bool_]]:
    """Return mean and error (None if nothing is drafted), the chances, and where anything is drafted."""
    from runtime.evaluation.statistics import with_error

    stands = np.concatenate(acceptance.stands[which])[:, i]
    offered = np.concatenate(acceptance.drafted[which]) > 0 if acceptance.drafted else np.ones(len(stands), np.bool_)
    return with_error(stands[offered]) if offered.any() else None, stands[offered], offered


def _of_text(acceptance: Acceptance, i: int, where: Places, which: slice, length: int) -> dict[str, Any]:
    """Return the figures of one text: acceptance, agreement, and tokens of a cycle at one draft length."""
    mean, _, offered = _acceptance(acceptance, i, which)
    cycle = mean_cycle(chances(acceptance, i, where, length, which), length)
    return {
        "acceptance": mean,
        "agreement": float(np.concatenate(acceptance.agree[which])[offered].mean()) if mean else None,
        "draft_length": length,
        "tokens_per_cycle": None if cycle is None else cycle.tokens,
    }
