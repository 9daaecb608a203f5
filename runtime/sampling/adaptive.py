"""Adaptive-p: favours tokens near a target probability, which adapts to the chosen tokens.

Source: llama.cpp#17927, adaptive_p.
"""

import numpy as np

from ..arrays import Doubles, Floats
from .candidates import Candidates

WIDTH, PEAK, SHARPNESS = 0.3, 5.0, 10.0  # llama.cpp's constants


def adaptive_p(of: Candidates, p: Doubles, target: float) -> Candidates:
    """Return logits 5 − 10 d² / (1 + d) with d = abs(p − target) / 0.3; excluded tokens stay excluded.

    p: the candidates' probabilities. target: from `aim`.
    """
    distance = np.abs(p - target) / WIDTH
    logits: Floats = (PEAK - SHARPNESS * distance * distance / (1 + distance)).astype(np.float32)
    logits[of.logits == -np.inf] = -np.inf
    return of.with_logits(logits, ordered=False)


def aim(target: float, weighted_sum: float, total_weight: float) -> float:
    """Return the probability to favour now, from 0 to 1: as far on the other side of `target` as the mean of those
    chosen.
    """
    return min(max(2 * target - weighted_sum / total_weight, 0.0), 1.0)


def start(target: float, decay: float) -> tuple[float, float]:
    """Return weighted sum and total weight as if tokens of the target probability had always been chosen."""
    return target / (1 - decay), 1 / (1 - decay)


def next_mean(p: float, decay: float, weighted_sum: float, total_weight: float) -> tuple[float, float]:
    """Return weighted sum and total weight after a token of probability p was chosen."""
    return p + decay * weighted_sum, 1 + decay * total_weight
