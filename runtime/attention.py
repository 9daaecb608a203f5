"""Scaled dot-product attention, a block of queries of one key-value head at a time.

Scores exist for one block a thread only, so memory does not grow with the square of the text.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .kernels.softmax import attention_weights
from .kernels.threads import run, spans

Floats = NDArray[np.float32]

BLOCK = 1 << 18  # scores of a block
MOST_QUERIES = 128  # of one head in a block: a causal block computes the scores of keys after its first query too
WORTH_A_THREAD = 1 << 18  # multiplications


def attend(
    q: Floats, k: Floats, v: Floats, *, q_positions: ArrayLike, scale: float, window: int | None = None,
    softcap: float | None = None, alibi: Floats | None = None, causal: bool = True, sinks: Floats | None = None,
    bias: Floats | None = None, sequences: int = 1,
) -> Floats:  # fmt: skip
    """softmax(scale q·k) v for every head: float32 (n, heads * dv).

    q (n, heads, d), k (m, kv heads, d), v (m, kv heads, dv), float32; heads share key-value heads in equal groups of
    neighbours. Key j stands at position j, query i at q_positions[i].
    window: a key at distance >= window is hidden. softcap: scores become c tanh(score / c). alibi: float32 (heads,),
    slopes of the distance penalty. sinks: float32 (heads,), logits that take part in the sum alone.
    bias: float32 (heads, n, m), added to the scores. sequences: q, k, v are so many equally long texts one after the
    other, which do not see each other.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    n, m = len(q) // sequences, len(k) // sequences
    group = heads // kv_heads
    positions = np.broadcast_to(np.asarray(q_positions, np.int64).reshape(-1, n), (sequences, n))
    sink = np.full(heads, -np.inf, np.float32) if sinks is None else np.asarray(sinks, np.float32)
    out = np.empty((len(q), heads, v.shape[2]), np.float32)
    queries = max(1, min(MOST_QUERIES, BLOCK // (group * max(1, m))))

    def block(sequence: int, g: int, start: int, stop: int) -> None:
        at = positions[sequence, start:stop]
        first, last = _visible(at, m, window, causal)
        begin, end = int(first.min()), max(int(last.max()), int(first.min()) + 1)
        keys = slice(sequence * m + begin, sequence * m + end)
        rows = slice(sequence * n + start, sequence * n + stop)
        mine = slice(g * group, (g + 1) * group)
        # rows of scores: the group's heads of the first query, of the second, …
        asked = np.ascontiguousarray(q[rows, mine]).reshape(-1, q.shape[2])
        scores = asked @ k[keys, g].T
        factor = np.float32(scale)
        if alibi is not None or bias is not None:
            np.multiply(scores, factor, out=scores)
            factor = np.float32(1)
            each = scores.reshape(stop - start, group, -1)
            if bias is not None:
                each += bias[mine, start:stop, begin:end].transpose(1, 0, 2)
            if alibi is not None:
                distance = np.abs(np.arange(begin, end)[None] - at[:, None]).astype(np.float32)
                each -= np.asarray(alibi, np.float32)[mine][None, :, None] * distance[:, None]
        attention_weights(
            scores, np.repeat(first - begin, group), np.repeat(last - begin, group), factor,
            np.float32(softcap or 0), np.tile(sink[mine], stop - start),
        )  # fmt: skip
        out[rows, mine] = (scores @ v[keys, g]).reshape(stop - start, group, -1)

    parts = itertools.product(range(sequences), range(kv_heads), spans(n, queries))
    blocks = [(sequence, g, *span) for sequence, g, span in parts]
    small = math.prod(q.shape) * m < WORTH_A_THREAD

    def several(begin: int, end: int) -> None:
        for which in blocks[begin:end]:
            block(*which)

    run(several, spans(len(blocks), len(blocks) if small else 1))
    return out.reshape(len(q), -1)


def _visible(
    at: NDArray[np.int64], keys: int, window: int | None, causal: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First key that each query sees, and the one after its last."""
    first = np.zeros_like(at) if window is None else np.clip(at - window + 1, 0, keys)
    if causal:
        return first, np.clip(at + 1, 0, keys)
    return first, np.full_like(at, keys) if window is None else np.clip(at + window, 0, keys)
