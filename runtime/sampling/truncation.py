"""Truncating samplers. Each has a neutral value, given with it."""

import numpy as np
from numpy.typing import NDArray

from ..arrays import Doubles
from .candidates import Candidates, entropy, largest, not_below, softmax

STAGES = (256, 8192)  # how many are sorted before the rest is


def top_k(of: Candidates, k: int) -> Candidates:
    """Return the k most likely; 0 or less: all. Source: arXiv 1805.04833; llama.cpp, top_k."""
    if k <= 0:
        return of
    return of.take(slice(k), ordered=True) if of.ordered else of.take(largest(of.logits, k), ordered=True)


def top_p(of: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Return the fewest of the most likely whose probabilities sum to p; 1: all.

    Source: arXiv 1904.09751; llama.cpp, top_p.
    """
    if p >= 1:
        return of
    probabilities = softmax(of.logits)
    if of.ordered:
        return of.take(slice(_needed(probabilities, p, min_keep)), ordered=True)
    left = of.take(_first_of(probabilities, probabilities, p, min_keep), ordered=False)
    return top_k(left, len(left)) if len(left) <= STAGES[-1] else left  # in order where that is cheap


def min_p(of: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Return those at least p times as likely as the most likely; 0: all. Source: llama.cpp#3841, min_p."""
    if p <= 0:
        return of
    likely = of.logits >= of.best + np.log(np.float32(p))
    if np.count_nonzero(likely) < max(min_keep, 1):  # with p above 1 none is
        return top_k(of, max(min_keep, 1))
    return of.take(likely, ordered=of.ordered)


def typical(of: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Return the fewest whose probabilities sum to more than p, by closeness of their surprise to the entropy; 1: all.

    Source: arXiv 2202.00666; llama.cpp, typical.
    """
    if p >= 1:
        return of
    probabilities = softmax(of.logits)
    with np.errstate(divide="ignore"):
        distance = np.abs(-np.log(probabilities) - entropy(probabilities))
    return of.take(_first_of(-distance, probabilities, p, min_keep, beyond=True), ordered=False)


def top_n_sigma(of: Candidates, n: float) -> Candidates:
    """Return the candidates without logits more than n standard deviations below the highest; 0 or less: all.

    The deviation is that of the finite logits. Source: arXiv 2411.07641; llama.cpp, top_n_sigma.
    """
    if n <= 0 or len(of) <= 1:
        return of
    finite = of.logits[of.logits > -np.inf].astype(np.float64)
    lowest = np.float32(max(finite.max() - n * finite.std(), np.finfo(np.float32).min))
    return of.with_logits(np.where(of.logits < lowest, np.float32(-np.inf), of.logits), ordered=of.ordered)


def xtc(of: Candidates, threshold: float, min_keep: int = 0) -> Candidates:
    """Return the candidates without all but the least likely of the tokens that have at least `threshold`; above 0.5:
    all.

    This is the result if the chain's coin says so. Source: text-generation-webui#6335; llama.cpp, xtc.
    """
    if threshold > 0.5 or len(of) < 2:
        return of
    p = softmax(of.logits).astype(np.float32)
    likely = np.flatnonzero((p >= np.float32(threshold)) & (p > 0))
    if len(likely) < 2 or len(of) - (len(likely) - 1) < min_keep:
        return of
    stays = np.ones(len(of), np.bool_)
    stays[likely[largest(of.logits[likely], len(likely))[:-1]]] = False
    return of.take(stays, ordered=of.ordered)


def _first_of(
    scores: Doubles, probabilities: Doubles, p: float, min_keep: int, beyond: bool = False
) -> NDArray[np.intp]:
    """Return places of the highest scores, as many as `_needed`, in ascending order; of equal ones the first."""
    size = len(scores)
    for count in (*(stage for stage in STAGES if stage < size), size):
        places = np.argpartition(scores, size - count)[size - count :] if count < size else np.arange(size)
        places = places[np.argsort(-scores[places])]
        needed = _needed(probabilities[places], p, min_keep, beyond)
        if needed < count:
            break
    return not_below(scores, scores[places[needed - 1]], needed)


def _needed(probabilities: Doubles, p: float, min_keep: int, beyond: bool = False) -> int:
    """Return how many are needed for a sum of p, or beyond it; all if that is not reached, and never fewer than
    min_keep.
    """
    sums = probabilities.cumsum().astype(np.float32)
    reached = sums > np.float32(p) if beyond else sums >= np.float32(p)
    first = int(reached.argmax()) + 1 if reached[-1] else len(sums)
    return min(max(first, min_keep), len(sums))
