"""Candidates for the next token, with their logits: the argument and result of samplers."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quants.errors import ModelError, OptionError

from ..arrays import Doubles, Floats, Ids

PARTS = 256  # number of parts, to locate the largest values


@dataclass(frozen=True)
class Candidates:
    """ids and logits (n,), a logit of minus infinity for an excluded token. ordered: the most likely comes first."""

    ids: Ids
    logits: Floats
    ordered: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def best(self) -> np.float32:
        """Return the highest logit."""
        # argmax returns the first NaN, if any
        highest: np.float32 = self.logits[0 if self.ordered else self.logits.argmax()]
        return highest

    def take(self, places: "NDArray[np.intp] | NDArray[np.bool_] | slice", ordered: bool) -> "Candidates":
        """Return the candidates at some places, in the order of these."""
        return Candidates(self.ids[places], self.logits[places], ordered)

    def with_logits(self, logits: Floats, ordered: bool) -> "Candidates":
        return Candidates(self.ids, logits, ordered)

    def places(self, tokens: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Return the places of tokens among the candidates, and which of the tokens are there; only those have
        places.
        """
        places = np.clip(tokens, 0, len(self) - 1)
        there = self.ids[places] == tokens  # directly, if the candidates are the whole vocabulary
        if not there.all():
            order = np.argsort(self.ids)
            places = order[np.minimum(np.searchsorted(self.ids, tokens, sorter=order), len(self) - 1)]
            there = self.ids[places] == tokens
        return places[there], there


def candidates(logits: Floats) -> Candidates:
    """Return the whole vocabulary as candidates.

    logits: (vocabulary,); minus infinity for a banned token. Raises ModelError if one is NaN or infinite, or none is
    left.
    """
    logits = np.asarray(logits, np.float32)
    if not len(logits) or not math.isfinite(logits[logits.argmax()]):  # argmax finds a NaN first
        raise ModelError(_what_is_wrong(logits), hint="gguftools validate finds weights that are damaged")
    return Candidates(_vocabulary(len(logits)), logits)


def _what_is_wrong(logits: Floats) -> str:
    for name, wrong in (("NaN", np.isnan(logits)), ("infinite", np.isposinf(logits))):
        if count := int(wrong.sum()):
            first = int(wrong.argmax())
            return f"no token can be drawn: {count} of {len(logits)} logits are {name}, the first that of token {first}"
    return f"no token can be drawn: each of {len(logits)} logits is minus infinity"


def checked(of: Candidates, by: str) -> Candidates:
    """Return the candidates unchanged. Raises OptionError if no token can be sampled any more. by: the sampler's name
    for the message.
    """
    best = of.logits.max()
    if best == -np.inf:
        raise OptionError(f"no token can be drawn: {by} left none")
    if not np.isfinite(best):
        raise OptionError(f"no token can be drawn: {by} made a logit infinite")
    return of


@lru_cache(maxsize=4)
def _vocabulary(size: int) -> Ids:
    ids = np.arange(size, dtype=np.int64)
    ids.flags.writeable = False
    return ids


def softmax(logits: Floats) -> Doubles:
    """Return probabilities (n,), float64. At least one logit must be finite."""
    weights = logits.astype(np.float64)
    weights -= weights[weights.argmax()]
    np.exp(weights, out=weights)
    weights /= np.add.reduce(weights)
    return weights


def entropy(p: Doubles) -> float:
    """Return the entropy of p in nats."""
    some = p[p > 0]
    return -float(some @ np.log(some))


def largest(values: "Floats | Doubles", count: int) -> NDArray[np.intp]:
    """Return places of the largest values, in descending order; of equal ones the first."""
    if count >= len(values):
        return (-values).argsort(kind="stable")
    places = None
    if len(values) >= PARTS * PARTS and count <= PARTS // 2:
        places = _among_the_largest(values, count)
        values = values[places]
    bar = np.partition(values, len(values) - count)[len(values) - count]
    kept = not_below(values, bar, count)
    kept = kept[(-values[kept]).argsort(kind="stable")]
    return kept if places is None else places[kept]


def _among_the_largest(values: "Floats | Doubles", count: int) -> NDArray[np.intp]:
    """Return places, ascending, of all values that can be among the `count` largest: those as large as that many of
    others.

    A few passes, where to partition all of them takes several times as long.
    """
    width = len(values) // PARTS
    maxima = values[: width * PARTS].reshape(width, PARTS).max(axis=0)
    return np.flatnonzero(values >= np.partition(maxima, PARTS - count)[PARTS - count])


def not_below(values: "Floats | Doubles", bar: float, count: int) -> NDArray[np.intp]:
    """Return places, ascending, of the `count` largest values, the smallest of which is `bar`; of those equal to it the
    first.
    """
    places = (values >= bar).nonzero()[0]
    if len(places) > count:
        equal = np.flatnonzero(values[places] == bar)
        places = np.delete(places, equal[len(equal) - (len(places) - count) :])
    return places
