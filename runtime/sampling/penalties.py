"""Penalties for recent tokens, and biases of tokens.

Sources: llama.cpp, penalties and logit_bias; the repetition penalty is CTRL's (arXiv 1909.05858), with negative logits
multiplied instead.
"""

from collections.abc import Mapping

import numpy as np

from ..arrays import Floats, Ids
from .candidates import Candidates


def penalties(of: Candidates, history: Ids, repeat: float, frequency: float, presence: float) -> Candidates:
    """Return the candidates with the logit l of a token in `history` replaced by l / repeat, or l · repeat below 0,
    less count · frequency + presence.

    history: the tokens to consider, the latest last. repeat 1, frequency 0 and presence 0 change nothing.
    """
    if not len(history) or (repeat == 1 and frequency == 0 and presence == 0):
        return of
    tokens, counts = np.unique(history, return_counts=True)
    places, there = of.places(tokens)
    was: Floats = of.logits[places]
    factor = np.float32(repeat)
    logits: Floats = of.logits.copy()
    with np.errstate(over="ignore", invalid="ignore"):  # the chain checks it
        less = counts[there].astype(np.float32) * np.float32(frequency) + np.float32(presence)
        logits[places] = np.where(was <= 0, was * factor, was / factor) - less
    return of.with_logits(logits, ordered=False)


def logit_bias(of: Candidates, biases: Mapping[int, float]) -> Candidates:
    """Return the candidates with biases added to the logits of some tokens; minus infinity bans a token."""
    if not biases:
        return of
    tokens = np.fromiter(biases, np.int64, len(biases))
    places, there = of.places(tokens)
    logits: Floats = of.logits.copy()
    logits[places] += np.fromiter(biases.values(), np.float32, len(biases))[there]
    return of.with_logits(logits, ordered=False)
