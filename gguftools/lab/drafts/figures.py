"""Predict the gain of drafts from the chances that each drafted token is accepted; pure functions.

A cycle drafts some tokens and verifies them in one pass of the model, which gives one token more. The next cycle begins
where one ends, so cycles begin more often where drafts fail, and a mean over all positions would count positions that
long cycles skip. Here each position counts as often as a cycle begins there.

Sources: Leviathan et al. 2023 (arXiv 2211.17192), theorem 1 and sections 3.1 to 3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Doubles, Ids

MIN_WEIGHT = 1e-9
LONGEST_RUN = 16  # of the histogram; the last count is of all longer ones


@dataclass(frozen=True)
class Chances:
    """The chances of acceptance at the positions of some texts.

    stands: float64 (texts, positions, depths): the chance that the first k + 1 tokens of a cycle which begins there are
    all accepted. drafted: (texts, positions), the maximum drafted there. lengths: (texts,), positions of a text; a
    cycle needs as many as it may draft. matched: (texts, positions), how many drafted tokens are the text's, if that
    decides where the next cycle begins; None if chance does.
    """

    stands: Doubles
    drafted: Ids
    lengths: Ids
    matched: Ids | None = None

    @property
    def longest(self) -> int:
        return int(self.stands.shape[2])


@dataclass(frozen=True)
class Cycles:
    """Cycles of one draft length, on average.

    tokens: of a cycle, the model's own one included. standard_error: of tokens, from the differences between texts;
    None for one text. accepted: (length,), the chance that the token at this depth is accepted if those before it are.
    drafted: (length + 1,), the share of cycles that draft so many tokens. whole: the share of cycles whose draft is
    accepted completely.
    """

    length: int
    tokens: float
    standard_error: float | None
    accepted: list[float]
    drafted: Doubles
    whole: float


def independent_chances(chances: Sequence[Doubles], longest: int) -> Chances:
    """Return the chances of drafts whose tokens are accepted independently.

    chances: of each text, at each position: the sum of min(p, q) of the models' distributions p and q.
    """
    lengths = np.array([len(each) for each in chances], np.int64)
    padded = np.zeros((len(chances), int(lengths.max(initial=0)) + longest))
    for row, each in zip(padded, chances, strict=True):
        row[: len(each)] = each
    windows = np.lib.stride_tricks.sliding_window_view(padded, longest, axis=1)[:, :-1]
    stands: Doubles = np.cumprod(windows, axis=2, dtype=np.float64)
    return Chances(stands, np.full(stands.shape[:2], longest, np.int64), lengths)


def lookup_chances(
    own: Sequence[Doubles],
    missed: Sequence[Doubles],
    matched: Sequence[Ids],
    drafted: Sequence[Ids],
    longest: int,
    written: bool = False,
) -> Chances:
    """Return the chances of deterministic drafts on texts: a token is accepted with the model's probability p.

    Of each text at each position: matched: how many of the first `drafted` tokens are the text's. own: p of the text's
    token; missed: p of the first drafted token that is not the text's; 0 for none. written: the text was generated with
    these drafts, so that it shows what was accepted and where the next cycle begins.

    The model's probabilities of tokens after the first mismatch are not known: they are a mean of the known ones at
    this depth, weighted by the probability that the tokens before were rejected.
    """
    lengths = np.array([len(each) for each in own], np.int64)
    shape = len(own), int(lengths.max(initial=0))
    of_text, wrong = np.zeros((shape[0], shape[1] + longest)), np.zeros(shape)
    right, offered = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for i, each in enumerate(zip(own, missed, matched, drafted, strict=True)):
        for row, values in zip((of_text[i], wrong[i], right[i], offered[i]), each, strict=True):
            row[: len(values)] = values
    inside = np.arange(shape[1]) < lengths[:, None]
    stands, before = np.zeros((*shape, longest)), np.ones(shape)
    for depth in range(longest):
        known = inside & (right >= depth) & (np.arange(shape[1]) + depth < lengths[:, None])
        chance = np.where(right > depth, of_text[:, depth : depth + shape[1]], wrong)
        mean = _mean(chance, 1 - before, known & (offered > depth))
        before = before * np.where(known, chance, mean) * (offered > depth)
        stands[:, :, depth] = before
    return Chances(stands, np.minimum(offered, longest), lengths, right if written else None)


def _mean(values: Doubles, weights: Doubles, some: NDArray[np.bool_]) -> float:
    """Return the weighted mean; 0 of none, and the plain mean if all weights are 0."""
    total = float(weights[some].sum())
    if total < MIN_WEIGHT:
        return float(values[some].mean()) if some.any() else 0.0
    return float((weights[some] * values[some]).sum()) / total


def mean_cycle(chances: Chances, length: int) -> Cycles | None:
    """Return the average of cycles of this draft length; None if no text has so many positions."""
    stands, drafted = chances.stands[:, :, :length], np.minimum(chances.drafted, length)
    possible = np.arange(stands.shape[1]) + length <= chances.lengths[:, None]
    if not possible.any():
        return None
    kept = stands
    if chances.matched is not None:
        kept = np.where(chances.matched[:, :, None] > np.arange(length), 1.0, 0.0)
    beginning = _beginning(kept) * possible
    count, tokens = beginning.sum(axis=1), (beginning * (1 + stands.sum(axis=2))).sum(axis=1)
    before = np.concatenate([np.ones((*stands.shape[:2], 1)), stands[:, :, :-1]], axis=2)
    tried = np.einsum("tp,tpk->k", beginning, before * (drafted[:, :, None] > np.arange(length)))
    stood = np.einsum("tp,tpk->k", beginning, stands)
    accepted = np.divide(stood, tried, out=np.zeros(length), where=tried > 0)
    shares = np.bincount(drafted.reshape(-1), beginning.reshape(-1), length + 1) / count.sum()
    mean = float(tokens.sum() / count.sum())
    last = np.take_along_axis(stands, np.maximum(drafted - 1, 0)[:, :, None], axis=2)[:, :, 0]
    whole = float((beginning * last * (drafted > 0)).sum() / count.sum())
    return Cycles(length, mean, _ratio_error(tokens, count), [float(each) for each in accepted], shares, whole)


def _beginning(stands: Doubles) -> Doubles:
    """Return the probability that a cycle begins at each position, starting with the first: (texts, positions)."""
    texts, places, length = stands.shape
    reached = np.concatenate([np.ones((texts, places, 1)), stands, np.zeros((texts, places, 1))], axis=2)
    ends = reached[:, :, :-1] - reached[:, :, 1:]  # the chance that exactly so many tokens are accepted
    beginning = np.zeros((texts, places + length + 1))
    beginning[:, 0] = 1
    for place in range(places):
        beginning[:, place + 1 : place + length + 2] += beginning[:, place, None] * ends[:, place]
    return beginning[:, :places]


def _ratio_error(tokens: Doubles, count: Doubles) -> float | None:
    """Return the standard error of the ratio of the sums, from its residuals in each text."""
    inside = count > 0
    texts = int(inside.sum())
    if texts < 2:
        return None
    tokens, count = tokens[inside], count[inside]
    rest = tokens - tokens.sum() / count.sum() * count
    return float(np.sqrt((rest**2).sum() * texts / (texts - 1)) / count.sum())


def independent_tokens(acceptance: float, length: int) -> float:
    """Return the tokens of a cycle if each token is accepted with the same chance."""
    if acceptance >= 1:
        return length + 1.0
    return float((1 - acceptance ** (length + 1)) / (1 - acceptance))


def runs(agree: Sequence[NDArray[np.bool_]]) -> dict[str, Any]:
    """Return statistics of runs of accepted tokens, as if drafts had no maximum length.

    agree: of each text, where the tokens are the same. counts: number of runs of 0, 1, … tokens, the last of all longer
    ones; open: tokens after the last mismatch of a text, which no other figure counts.
    """
    lengths: list[int] = []
    rest = 0
    for each in agree:
        ends = np.flatnonzero(~each)
        lengths += (np.diff(np.concatenate([[-1], ends])) - 1).tolist()
        rest += len(each) - 1 - int(ends[-1]) if len(ends) else len(each)
    run_lengths = np.array(lengths, np.int64)
    counts = np.bincount(np.minimum(run_lengths, LONGEST_RUN + 1), minlength=LONGEST_RUN + 2)
    known = len(run_lengths) > 0
    return {
        "counts": counts.tolist(),
        "mean": float(run_lengths.mean()) if known else None,
        "median": float(np.median(run_lengths)) if known else None,
        "longest": int(run_lengths.max()) if known else None,
        "open": rest,
    }


@dataclass(frozen=True)
class Costs:
    """Costs of passes and draws; a token of the model alone is 1.

    draft: of drafting one token. verify: (longest + 1,), of a pass over one token and 0, 1, … drafted ones, with the
    cost of switching to the draft and back. last: of the draft reading its own last token, if all were accepted: its
    next pass is over two. drawn: of drawing a token; the first of a cycle is in verify.
    """

    draft: float
    verify: Doubles
    last: float = 0.0
    drawn: float = 0.0

    def of(self, cycles: Cycles) -> float:
        """Return the cost of an average cycle."""
        lengths = np.arange(cycles.length + 1)
        passes = float((cycles.drafted * (self.draft * lengths + self.verify[lengths])).sum())
        return passes + self.last * cycles.whole + self.drawn * (cycles.tokens - 1)


def speedup(cycles: Cycles, costs: Costs) -> float:
    """Return tokens a second relative to the model alone."""
    return cycles.tokens / costs.of(cycles)


def best_length(candidates: Sequence[Cycles], costs: Costs) -> Cycles | None:
    """Return the draft length with the largest speed-up, the shortest of equal ones; None if none is faster."""
    gains = [speedup(each, costs) for each in candidates]
    return candidates[int(np.argmax(gains))] if gains and max(gains) > 1 else None
