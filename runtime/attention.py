"""Scaled dot-product attention, a block of queries of one key-value head at a time.

Scores exist for one block a thread only, so memory does not grow with the square of the text.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, Ids
from .kernels.softmax import attention_weights
from .kernels.threads import parallel, spans

BLOCK = 1 << 20  # scores of a block: 4 MB
MOST_QUERIES = 128  # of one head in a block: a causal block computes the scores of keys after its first query too
MIN_OPS_PER_THREAD = 1 << 18  # multiplications


@dataclass(frozen=True)
class _Block:
    """Queries start … stop - 1 and the keys begin … end - 1 that any of them sees; each sees its first … last - 1."""

    start: int
    stop: int
    begin: int
    end: int
    first: Ids
    last: Ids


def attend(
    q: Floats, k: Floats, v: Floats, *, q_positions: ArrayLike, scale: float, window: int | None = None,
    softcap: float | None = None, alibi: Floats | None = None, causal: bool = True, sinks: Floats | None = None,
    bias: Floats | None = None, sequences: int = 1, chunk: int | None = None, threads: int = 1,
) -> Floats:  # fmt: skip
    """softmax(scale q·k) v for every head: float32 (n, heads * dv).

    q (n, heads, d), k (m, kv heads, d), v (m, kv heads, dv), float32; heads share key-value heads in equal groups of
    neighbours. Key j stands at position j, query i at q_positions[i].
    window: a key at distance >= window is hidden. softcap: scores become c tanh(score / c). alibi: float32 (heads,),
    slopes of the distance penalty. sinks: float32 (heads,), logits that take part in the sum alone.
    bias: float32 (heads, n, m), added to the scores. sequences: q, k, v are so many equally long texts one after the
    other, which do not see each other; positions and bias are those of one text. chunk: of so many positions each; keys
    of a query's own chunk alone are seen.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    n, m = len(q) // sequences, len(k) // sequences
    group = heads // kv_heads
    sink = np.full(heads, -np.inf, np.float32) if sinks is None else np.asarray(sinks, np.float32)
    slopes = None if alibi is None else np.asarray(alibi, np.float32)
    at = np.asarray(q_positions, np.int64)
    cap, factor = np.float32(softcap or 0), np.float32(scale)
    queries = max(1, min(MOST_QUERIES, BLOCK // (group * max(1, m))))
    blocks = [_block(start, stop, at[start:stop], m, window, causal, chunk) for start, stop in spans(n, queries)]
    out = np.empty((len(q), heads, v.shape[2]), np.float32)

    def attend_block(sequence: int, g: int, block: _Block) -> None:
        rows = slice(sequence * n + block.start, sequence * n + block.stop)
        keys = slice(sequence * m + block.begin, sequence * m + block.end)
        mine = slice(g * group, (g + 1) * group)
        scores = (q[rows, mine] * factor).reshape(-1, q.shape[2]) @ k[keys, g].T
        each = scores.reshape(block.stop - block.start, group, -1)
        if bias is not None:
            each += bias[mine, block.start : block.stop, block.begin : block.end].transpose(1, 0, 2)
        if slopes is not None:
            distance = np.abs(np.arange(block.begin, block.end) - at[block.start : block.stop, None])
            each -= slopes[mine, None] * distance[:, None].astype(np.float32)
        share = np.empty((len(scores), 1), np.float32)
        attention_weights(scores, block.first, block.last, cap, sink[mine], share.reshape(-1))
        mixed = scores @ v[keys, g]
        np.multiply(mixed, share, out=mixed)
        out[rows, mine] = mixed.reshape(block.stop - block.start, group, -1)

    # long blocks first, so that no thread begins one when the others are done
    parts = list(itertools.product(range(sequences), range(kv_heads), sorted(blocks, key=lambda b: b.begin - b.end)))

    def attend_parts(begin: int, end: int) -> None:
        for sequence, g, block in parts[begin:end]:
            attend_block(sequence, g, block)

    parallel(attend_parts, spans(len(parts), len(parts) if math.prod(q.shape) * m < MIN_OPS_PER_THREAD else 1), threads)
    return out.reshape(len(q), -1)


def _block(
    start: int, stop: int, at: Ids, keys: int, window: int | None, causal: bool, chunk: int | None
) -> _Block:
    """at: positions of the queries start … stop - 1."""
    first = np.zeros_like(at) if window is None else np.clip(at - window + 1, 0, keys)
    if chunk is not None:
        first = np.maximum(first, at // chunk * chunk)
    if causal:
        last = np.clip(at + 1, 0, keys)
    else:
        last = np.full_like(at, keys) if window is None else np.clip(at + window, 0, keys)
    begin, end = int(first.min()), int(last.max())
    return _Block(start, stop, begin, max(begin, end), first - begin, np.maximum(last, first) - begin)
