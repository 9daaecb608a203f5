"""Temperature, fixed or by entropy."""

import math

import numpy as np

from ..arrays import Floats
from .candidates import Candidates, entropy, softmax

HOTTEST = float(np.finfo(np.float32).max)


def temperature(of: Candidates, value: float) -> Candidates:
    """Return logits divided by `value`; 0 or less: only the first of the most likely. Source: llama.cpp, temp."""
    if value > 0:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            logits: Floats = of.logits / np.float32(min(value, HOTTEST))
        divided = of.with_logits(logits, ordered=of.ordered)
        if math.isfinite(divided.best):  # otherwise the temperature is effectively 0
            return divided
    best = int(of.logits.argmax())
    logits = np.full(len(of), -np.inf, np.float32)
    logits[best] = of.logits[best]
    return of.with_logits(logits, ordered=of.ordered)


def likeliest(of: Candidates) -> Candidates:
    """Return only the first of the most likely: temperature 0."""
    best = int(of.logits.argmax())
    return of.take(slice(best, best + 1), ordered=True)


def dynamic_temperature(of: Candidates, value: float, spread: float, exponent: float) -> Candidates:
    """Return a temperature from value − spread to value + spread: the surer the model is, the lower. spread 0:
    `temperature`.

    It is low + (high − low) · (H / ln n)^exponent, with the entropy H of n candidates. Source: arXiv 2309.02772;
    llama.cpp, temp_ext.
    """
    if spread <= 0:
        return temperature(of, value)
    if len(of) <= 1:
        return of
    low, high = max(0.0, value - spread), value + spread
    share = min(entropy(softmax(of.logits)) / math.log(len(of)), 1.0)
    return temperature(of, low + (high - low) * max(share, 0.0) ** exponent)
