"""Mirostat: truncates to keep a text's surprise at a target.

Source: arXiv 2007.14966; llama.cpp, mirostat and mirostat-v2.
"""

import math

import numpy as np

from .candidates import Candidates, softmax
from .truncation import top_k

MEASURED = 100  # tokens from which version 1 estimates Zipf's exponent


def mirostat(of: Candidates, mu: float, vocabulary: int) -> Candidates:
    """Return version 1: the k most likely, with k from Zipf's law. mu: the maximum surprise in bits. vocabulary: all
    tokens.
    """
    head = top_k(of, MEASURED).logits.astype(np.float64)
    head = head[head > -np.inf]
    if len(head) < 2:
        return top_k(of, 1)
    b = head[:-1] - head[1:]  # logarithms of the ratios of successive probabilities
    places = np.arange(len(b))
    t = np.log((places + 2) / (places + 1))
    return top_k(of, _k(float(t @ b / (t @ t)), mu, vocabulary, len(of)))


def _k(s: float, mu: float, vocabulary: int, max_k: int) -> int:
    """Return (e · 2^mu / (1 − vocabulary^−e))^(1 / s) with e = s − 1, from 1 to `max_k`. In logarithms: mu has no
    bound.
    """
    e = s - 1
    ratio = 1 / math.log(vocabulary) if e == 0 else e / -math.expm1(-e * math.log(vocabulary))
    log_power = math.log(ratio) + mu * math.log(2)
    if log_power >= s * math.log(max_k):
        return max_k
    return max(int(math.exp(log_power / s)), 1) if s > 0 else 1


def mirostat_2(of: Candidates, mu: float) -> Candidates:
    """Return version 2: those whose surprise is at most mu bits, and always the most likely."""
    with np.errstate(divide="ignore"):
        likely = -np.log2(softmax(of.logits)) <= mu
    return of.take(likely, ordered=of.ordered) if likely.any() else top_k(of, 1)


def next_mu(mu: float, p: float, tau: float, eta: float) -> float:
    """Return mu after a token was drawn whose probability among the remaining was p. tau: the target surprise in
    bits.
    """
    return mu - eta * (-math.log2(p) - tau)
