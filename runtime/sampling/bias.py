"""Biases of tokens, including bans."""

from collections.abc import Mapping

import numpy as np

from ..arrays import Floats
from .candidates import Candidates


def logit_bias(of: Candidates, biases: Mapping[int, float]) -> Candidates:
    """Return the candidates with biases added to the logits of some tokens; minus infinity bans one. Source: llama.cpp,
    logit_bias.
    """
    if not biases:
        return of
    tokens = np.fromiter(biases, np.int64, len(biases))
    places, there = of.places(tokens)
    logits: Floats = of.logits.copy()
    logits[places] += np.fromiter(biases.values(), np.float32, len(biases))[there]
    return of.with_logits(logits, ordered=False)
