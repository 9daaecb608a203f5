"""Acceptance of drafted tokens: rules that preserve the model's distribution, and one that does not.

A drafted token x that was drawn from q is accepted with probability min(1, p(x) / q(x)), p being the model's
distribution; otherwise the token is drawn from norm(max(0, p - q)) instead. Whatever q is, the result is distributed as
p.

Several candidates for one place are tried in turn, each rejection leaving that residual as the p of the next one. For
that a candidate's q has to be its distribution given those before it: the same q again if they were drawn with
replacement, q without its earlier siblings if not, and for a deterministic token (looked up in the text, or the
likeliest of some), the token itself with certainty.

Sources: Leviathan et al. 2023 (arXiv 2211.17192), theorem and algorithm 1; SpecInfer (arXiv 2305.09781), algorithm 2.
Typical acceptance: Medusa (arXiv 2401.10774), section 3.3.1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arrays import Doubles
from ..sampling.sampler import Distribution

TYPICAL_EPSILON, TYPICAL_DELTA = 0.09, 0.3  # Medusa's
Uniform = Callable[[], float]  # the next random number of [0, 1)


@dataclass(frozen=True)
class Candidate:
    """A drafted token, and its distribution; None if it is deterministic."""

    token: int
    q: Distribution | None = None


class Verdict(NamedTuple):
    """The next token; candidate: which of the candidates it is, None for none of them."""

    token: int
    candidate: int | None


Rule = Callable[[Distribution, Sequence[Candidate], Uniform], Verdict]


def acceptance_rate(p: Distribution, q: Distribution) -> float:
    """Return how often a token drawn from q is accepted under p: the sum of min(p, q) over all tokens."""
    return float(np.minimum(p.p, _at(q, p)).sum())


def residual(p: Distribution, q: Distribution) -> Distribution:
    """Return norm(max(0, p - q)): the distribution after a token drawn from q was rejected; p itself if none is
    left.
    """
    left = np.maximum(p.p - _at(q, p), 0)
    return _normed(p, left)


def accepts(p: Distribution, candidate: Candidate, u: float) -> bool:
    """Return whether a candidate is accepted; u: a uniform number of [0, 1). Raises ValueError if it can't come from
    its q.
    """
    q = 1.0 if candidate.q is None else candidate.q.of(candidate.token)
    if q <= 0:
        raise ValueError(f"token {candidate.token} was not drawn from its distribution")
    return u * q < p.of(candidate.token)


def drawn(p: Distribution, u: float) -> int:
    """Return the token for a uniform number of [0, 1)."""
    sums = np.cumsum(p.p)
    return int(p.ids[min(int(np.searchsorted(sums, u * sums[-1], "right")), len(sums) - 1)])


def verify(p: Distribution, candidates: Sequence[Candidate], uniform: Uniform) -> Verdict:
    """Return the next token, distributed exactly as p: the first accepted candidate, or one from the residual.

    For deterministic candidates a single number is used, which gives the same token as without a draft.
    """
    if all(each.q is None for each in candidates):
        return _foreseen(p, candidates, uniform)
    for place, candidate in enumerate(candidates):
        if accepts(p, candidate, uniform()):
            return Verdict(candidate.token, place)
        p = _without(p, candidate.token) if candidate.q is None else residual(p, candidate.q)
    return Verdict(drawn(p, uniform()), None)


def verify_typically(
    p: Distribution,
    candidates: Sequence[Candidate],
    uniform: Uniform,
    epsilon: float = TYPICAL_EPSILON,
    delta: float = TYPICAL_DELTA,
) -> Verdict:
    """Accept the first candidate likelier than min(epsilon, delta e^-H), H being the entropy of p. Not exact.

    With a temperature above 0 texts become more similar to the draft model's.
    """
    threshold = min(epsilon, delta * float(np.exp((p.p * np.log(p.p)).sum())))
    for place, candidate in enumerate(candidates):
        if p.of(candidate.token) > threshold:
            return Verdict(candidate.token, place)
    return Verdict(drawn(p, uniform()), None)


def _foreseen(p: Distribution, candidates: Sequence[Candidate], uniform: Uniform) -> Verdict:
    """Draw the token from p, and accept a candidate that equals it: as often as by the rule, for deterministic
    candidates.
    """
    token = drawn(p, uniform())
    return Verdict(token, next((i for i, each in enumerate(candidates) if each.token == token), None))


def _at(q: Distribution, p: Distribution) -> Doubles:
    """Return q of the tokens of p."""
    if q.ids is p.ids:  # the whole vocabulary
        return q.p
    size = 1 + max(int(q.ids.max(initial=0)), int(p.ids.max(initial=0)))
    return q.over(size)[p.ids]


def _without(p: Distribution, token: int) -> Distribution:
    return _normed(p, np.where(p.ids == token, 0.0, p.p))


def _normed(p: Distribution, left: Doubles) -> Distribution:
    """Return the rest of p, with the sum 1. If rounding leaves nothing of nearly equal distributions: p."""
    kept, total = left > 0, left.sum()
    return Distribution(p.ids[kept], left[kept] / total) if total > 0 else p
