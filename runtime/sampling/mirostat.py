"""Mirostat: leaves out as many tokens as it takes for a text of a wanted surprise.

Source: arXiv 2007.14966; llama.cpp, mirostat and mirostat-v2.
"""

import math

import numpy as np

from .candidates import Candidates, in_order, softmax
from .truncation import top_k

MEASURED = 100  # tokens from which version 1 estimates Zipf's exponent


def mirostat(of: Candidates, mu: float, vocabulary: int) -> Candidates:
    """Version 1: the k most likely, with k from Zipf's law. mu: the most surprise in bits. vocabulary: all tokens."""
    of = in_order(of)
    head = softmax(of.logits)[:MEASURED]
    head = head[head > 0]
    if len(head) < 2:
        return of.take(slice(1), ordered=True)
    places = np.arange(len(head) - 1)
    t = np.log((places + 2) / (places + 1))
    s = float(t @ np.log(head[:-1] / head[1:]) / (t @ t))
    return top_k(of, _k(s, mu, vocabulary, len(of)))


def _k(s: float, mu: float, vocabulary: int, most: int) -> int:
    """(e · 2^mu / (1 − vocabulary^−e))^(1 / s) with e = s − 1, from 1 to `most`. In logarithms: mu has no bound."""
    e = s - 1
    ratio = 1 / math.log(vocabulary) if e == 0 else e / -math.expm1(-e * math.log(vocabulary))
    log_power = math.log(ratio) + mu * math.log(2)
    if log_power >= s * math.log(most):
        return most
    return max(int(math.exp(log_power / s)), 1) if s > 0 else 1


def mirostat_2(of: Candidates, mu: float) -> Candidates:
    """Version 2: those whose surprise is at most mu bits, and always the most likely."""
    of = in_order(of)
    with np.errstate(divide="ignore"):
        surprise = -np.log2(softmax(of.logits))
    return of.take(slice(max(int((surprise <= mu).sum()), 1)), ordered=True)


def next_mu(mu: float, p: float, tau: float, eta: float) -> float:
    """After a token was drawn whose probability among those left was p. tau: the wanted surprise in bits."""
    return mu - eta * (-math.log2(p) - tau)
