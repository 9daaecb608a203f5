"""DRY: a penalty for tokens that would continue a repetition, growing with its length.

Source: text-generation-webui#5677 (p-e-w), koboldcpp#982 (pi6am), llama.cpp, dry.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..arrays import Floats, Ids
from .candidates import Candidates

# first token → the required following tokens, empty for a single token
Breakers = Mapping[int, Sequence[tuple[int, ...]]]
LOG_OF_LARGEST = 88.7228391  # natural logarithm of the largest float32
MAX_BYTES, MAX_TOKENS = 40, 20  # of a breaker, and of the tokens after its first one


def dry(
    of: Candidates, history: Ids, multiplier: float, base: float, allowed: int, breakers: Breakers | None = None
) -> Candidates:
    """Return the candidates with multiplier · base^(n − allowed) subtracted from the logit of tokens that would extend
    a repetition of n tokens.

    history: the tokens to consider, the latest last. allowed: length of repetitions without penalty. breakers: no
    repetition extends back over one. multiplier 0, or a base below 1, changes nothing.
    """
    if multiplier == 0 or base < 1 or len(history) <= allowed:
        return of
    breakers = breakers or {}
    reach = since_breaker(history, breakers)
    if reach < allowed:
        return of
    # Beyond this a penalty would overflow float32, so longer repetitions need no distinction.
    steepest = int(LOG_OF_LARGEST / math.log(base)) if base > 1.000001 else 0
    max_length = min(reach, allowed + steepest) if steepest else reach
    lengths = repetitions(history, max_length)
    longest: dict[int, int] = {}
    for token, length in zip(history[1:].tolist(), lengths.tolist(), strict=True):
        if length >= allowed and () not in breakers.get(token, ()):
            longest[token] = max(longest.get(token, 0), length)
    if not longest:
        return of
    places, there = of.places(np.fromiter(longest, np.int64, len(longest)))
    excess = np.fromiter(longest.values(), np.float64, len(longest))[there] - allowed
    logits: Floats = of.logits.copy()
    with np.errstate(over="ignore"):
        logits[places] -= (multiplier * np.float64(np.float32(base)) ** excess).astype(np.float32)
    return of.with_logits(logits, ordered=False)


def repetitions(history: Ids, max_length: int) -> Ids:
    """Return for each place but the last, how many tokens up to there equal the latest ones: (n − 1,), at most
    `max_length`.
    """
    last = len(history) - 1
    lengths = np.zeros(last, np.int64)
    still = np.arange(last)
    for back in range(max_length):
        still = still[still >= back]
        still = still[history[still - back] == history[last - back]]
        if not len(still):
            break
        lengths[still] = back + 1
    return lengths


def since_breaker(history: Ids, breakers: Breakers) -> int:
    """Return how many of the latest tokens come after the last breaker; all if there is none."""
    if not breakers:
        return len(history)
    tokens = history.tolist()
    for back, token in enumerate(reversed(tokens)):
        at = len(tokens) - 1 - back
        fits = [len(tail) for tail in breakers.get(token, ()) if tuple(tokens[at + 1 : at + 1 + len(tail)]) == tail]
        if fits:
            return back - max(fits)
    return len(tokens)


def breakers_of(
    texts: Iterable[str], pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]]
) -> dict[int, list[tuple[int, ...]]]:
    """Return breakers as tokens: those that contain one, and those that end with the beginning of one, with the tokens
    that must follow.

    pieces: the bytes of each token of the vocabulary. encode: tokens of a text, without special ones.
    """
    breakers: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        breaker = text.encode()[:MAX_BYTES]
        if not breaker:
            continue
        tails = {size: _tail(breaker[size:], pieces, encode) for size in range(1, len(breaker))}
        for token, piece in enumerate(pieces):
            ends = [()] if breaker in piece else [tails[size] for size in tails if piece.endswith(breaker[:size])]
            for tail in ends:
                if tail is not None and tail not in breakers.setdefault(token, []):
                    breakers[token].append(tail)
    return {token: tails for token, tails in breakers.items() if tails}


def _tail(rest: bytes, pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]]) -> tuple[int, ...] | None:
    """Return the tokens of a breaker's remainder, of single bytes if a character was split; None if it has none."""
    try:
        return tuple(encode(rest.decode()))[:MAX_TOKENS]
    except UnicodeDecodeError:
        single = [bytes([byte]) for byte in rest]
        return tuple(map(pieces.index, single)) if all(each in pieces for each in single) else None
