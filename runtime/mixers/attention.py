"""Scaled dot-product attention, a block of queries of one key-value head at a time.

Scores exist for one block a thread only, so memory does not grow with the square of the text.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from quants.kernels.lane_memory import rooms
from quants.kernels.lanes import LANES

from .. import ops
from ..arrays import Floats, Ids
from ..kernels import attention
from ..kernels.attention import COLUMNS, ROWS
from ..kernels.threads import parallel, share_out, spans

ROOM = 1 << 18  # scores of a block: 1 MB stays in a core's second cache
BLOCKS_A_THREAD = 4  # at least, where that leaves each as many multiplications as
WORTHWHILE = 1 << 21
MIN_OPS_PER_THREAD = 1 << 18  # multiplications


@dataclass(frozen=True)
class AttentionOptions:
    """Which keys a query sees, and what changes its scores.

    causal: keys after the query are hidden. window: so are keys at distance >= window. chunk: keys outside the query's
    own chunk of so many positions are hidden. keys_after: int64 (n,), how many keys after each query are visible in a
    causal mask. bias: float32 (heads, n, m), added to the scores. alibi: float32 (heads,), slopes of the distance
    penalty. softcap: scores become c tanh(score / c). sinks: float32 (heads,), logits that take part in the sum only.
    """

    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    keys_after: Ids | None = None
    bias: Floats | None = None
    alibi: Floats | None = None
    softcap: float | None = None
    sinks: Floats | None = None

    def seen(self, at: Ids, keys: int) -> tuple[Ids, Ids]:
        """Return the first visible key of each query at these positions, and the end."""
        first = np.zeros_like(at) if self.window is None else np.clip(at - self.window + 1, 0, keys)
        if self.chunk is not None:
            first = np.maximum(first, at // self.chunk * self.chunk)
        if self.causal:
            last = np.clip(at + 1, 0, keys)
        else:
            last = np.full_like(at, keys) if self.window is None else np.clip(at + self.window, 0, keys)
        last = np.maximum(last, first)
        return first, last if self.keys_after is None else np.maximum(last, np.minimum(at + 1 + self.keys_after, keys))


CAUSAL, BIDIRECTIONAL = AttentionOptions(), AttentionOptions(causal=False)


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    positions: ArrayLike,
    scale: float,
    options: AttentionOptions = CAUSAL,
    *,
    sequences: int = 1,
    threads: int = 1,
) -> Floats:
    """Return softmax(scale q·k) v for every head: float32 (n, heads * dv).

    q (n, heads, d), k (m, kv heads, d), v (m, kv heads, dv), float32; heads share key-value heads in equal groups of
    neighbours. Key j is at position j, query i at positions[i]. sequences: q, k, v are so many equally long texts one
    after the other, which do not see each other; positions and bias are those of one text. Raises ValueError for heads
    or widths that do not fit each other.
    """
    heads, kv_heads, n, m = q.shape[1], k.shape[1], len(q) // sequences, len(k) // sequences
    if heads % kv_heads or q.shape[2] != k.shape[2] or k.shape[:2] != v.shape[:2]:  # kernels would read past their ends
        raise ValueError(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit each other")
    at = np.asarray(positions, np.int64)
    few = n * (heads // kv_heads) < ROWS  # too few to lay the keys out for them
    values = _filled(v, COLUMNS) if few else _by_head(v, sequences, threads)
    packed = None if few else _packed(k, sequences, threads)
    out = np.empty((len(q), heads, v.shape[2]), np.float32)
    _attend_blocks(_Job(q, k, packed, values, out, *options.seen(at, m), at, scale, options, sequences), threads)
    return out.reshape(len(q), -1)


@dataclass(frozen=True)
class _Job:
    """What all blocks of queries have in common; `attend` explains it.

    packed: keys as the kernel reads them, or None where few queries read them as they are. values: by key-value head,
    or by key where `packed` is None. first, last: the keys that each query sees. at: positions of queries.
    """

    q: Floats
    k: Floats
    packed: Floats | None
    values: Floats
    out: Floats
    first: Ids
    last: Ids
    at: Ids
    scale: float
    options: AttentionOptions
    sequences: int

    @property
    def keys(self) -> int:
        """Return the number of keys of one text."""
        return len(self.k) // self.sequences

    @cached_property
    def sinks(self) -> Floats:
        """Return logits of sinks, float32 (heads,); -inf without any."""
        sinks = self.options.sinks
        return np.full(self.q.shape[1], -np.inf, np.float32) if sinks is None else np.asarray(sinks, np.float32)


def _attend_blocks(job: _Job, threads: int) -> None:
    """Run all blocks of queries in threads, each with scratch memory of its own."""
    kv_heads, n, m = job.k.shape[1], len(job.q) // job.sequences, job.keys
    group, products = job.q.shape[1] // kv_heads, math.prod(job.q.shape) * m
    wanted = min(BLOCKS_A_THREAD * threads, products // WORTHWHILE) // (job.sequences * kv_heads)
    blocks = spans(n, -(-n // max(1, wanted, -(-n * group * m // ROOM))))
    # longest rows first, so that no thread begins one when the others are done
    parts = list(itertools.product(range(job.sequences), range(kv_heads), sorted(blocks, reverse=True)))
    size = (blocks[0][1] * group + ROWS) * (m + COLUMNS + LANES)
    free: list[Floats] = []  # scratch memory not in use

    def attend_parts(begin: int, end: int) -> None:
        try:
            room = free.pop()
        except IndexError:
            room = rooms(-(-size // LANES))[0]
            room[:] = 0  # hidden scores are not computed, but bias and softcap are applied to them
        for sequence, g, (start, stop) in parts[begin:end]:
            _attend_block(job, sequence, g, slice(start, stop), room)
        free.append(room)

    parallel(attend_parts, spans(len(parts), len(parts) if products < MIN_OPS_PER_THREAD else 1), threads)


def _attend_block(job: _Job, sequence: int, g: int, block: slice, room: Floats) -> None:
    """Attend from a block of queries of a text to key-value head g."""
    heads, kv_heads, width = job.q.shape[1], job.k.shape[1], job.out.shape[2]
    group, n, m = heads // kv_heads, len(job.q) // job.sequences, job.keys
    seen, mine = (job.first[block], job.last[block]), slice(g * group, (g + 1) * group)
    base = int(seen[0].min()) // COLUMNS * COLUMNS
    keys = -(-max(0, int(seen[1].max()) - base) // COLUMNS) * COLUMNS
    queries = (block.stop - block.start) * group
    stride, filled = keys + LANES, -(-queries // ROWS) * ROWS  # rows 2**n apart would share cache lines
    scores = room[: filled * stride].reshape(filled, stride)
    _score(job, sequence, g, block, base, scores)
    each = scores[:queries].reshape(-1, group, stride)[:, :, : m - base]
    if (bias := job.options.bias) is not None:
        each += bias[mine, block, base : base + each.shape[2]].transpose(1, 0, 2)
    if (alibi := job.options.alibi) is not None:
        distance = np.abs(np.arange(base, base + each.shape[2]) - job.at[block, None])
        each -= np.asarray(alibi, np.float32)[mine, None] * distance[:, None].astype(np.float32)
    if job.options.softcap:
        ops.softcap(scores, job.options.softcap)
    apart = job.values.shape[2]  # widths that are filled up
    by_key = job.packed is None
    mixed, shares = rooms(-(-filled * apart // LANES), -(-queries // LANES))
    attention.mix(
        scores.reshape(-1),
        stride,
        base,
        queries,
        group,
        *seen,
        job.sinks[mine],
        job.values.reshape(-1),
        (sequence * m * kv_heads + g * (1 if by_key else m)) * apart,
        apart * (kv_heads if by_key else 1),
        mixed,
        shares,
        job.out.reshape(-1),
        ((sequence * n + block.start) * heads + g * group) * width,
        heads * width,
        width,
    )


def _score(job: _Job, sequence: int, g: int, block: slice, base: int, scores: Floats) -> None:
    """Multiply a block's queries with the keys of head g from `base` on: scores (rows, keys and LANES)."""
    kv_heads, width, group = job.k.shape[1], job.q.shape[2], job.q.shape[1] // job.k.shape[1]
    n, m, keys = len(job.q) // job.sequences, job.keys, scores.shape[1] - LANES
    of_text = job.q[sequence * n + block.start : sequence * n + block.stop, g * group : (g + 1) * group]
    asked = (of_text * np.float32(job.scale)).reshape(-1, width)
    if job.packed is None:
        text = job.k[sequence * m + base : min(sequence * m + base + keys, (sequence + 1) * m), g]
        scores[: len(asked), : len(text)] = asked @ text.T
        return
    queries = np.zeros((len(scores), job.packed.shape[2]), np.float32)
    queries[: len(asked), :width] = asked
    own = job.packed[sequence * kv_heads + g].reshape(-1)
    attention.scores(
        queries.reshape(-1),
        len(asked),
        group,
        queries.shape[1],
        job.first[block],
        job.last[block],
        own,
        base,
        scores.reshape(-1),
        scores.shape[1],
    )


def _filled(x: Floats, multiple: int) -> Floats:
    """Return x (n, heads, width) padded with zeros to a multiple."""
    short = -x.shape[2] % multiple
    return np.pad(x, ((0, 0), (0, 0), (0, short))) if short else np.ascontiguousarray(x)


def _by_head(v: Floats, sequences: int, threads: int) -> Floats:
    """Return values of each text and head together, filled up with zeros: (sequences * heads, keys, width)."""
    m, heads, width = len(v) // sequences, *v.shape[1:]
    filled = -(-width // COLUMNS) * COLUMNS
    laid = rooms(sequences * heads * m * filled // LANES)[0].reshape(sequences * heads, m, filled)

    def lay(start: int, stop: int) -> None:
        for i in range(start, stop):
            laid[i, :, :width] = v[i // heads * m : (i // heads + 1) * m, i % heads]
            laid[i, :, width:] = 0

    share_out(lay, len(laid), 1 + MIN_OPS_PER_THREAD // (m * filled), threads)
    return laid


def _packed(k: Floats, sequences: int, threads: int) -> Floats:
    """Return keys of each text and head as `attention.pack_keys` lays them out: (sequences * heads, keys, width)."""
    k = _filled(k, LANES)
    m, heads, width = len(k) // sequences, *k.shape[1:]
    keys = -(-m // COLUMNS) * COLUMNS
    packed = rooms(sequences * heads * keys * width // LANES)[0].reshape(sequences * heads, keys, width)
    flat = k.reshape(-1)

    def pack(start: int, stop: int) -> None:
        for i in range(start, stop):
            first = (i // heads * m * heads + i % heads) * width
            own = packed[i].reshape(-1)
            attention.pack_keys(flat[first:], heads * width, m, width, np.empty(LANES, np.int64), own)

    share_out(pack, len(packed), 1 + MIN_OPS_PER_THREAD // (m * width), threads)
    return packed
