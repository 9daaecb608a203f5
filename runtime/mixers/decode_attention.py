"""Attention of one to eight tokens after a cache, read as it is stored (see `kernels.attention_operations`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.hparams.model_hparams import LayerHParams
from quants.kernels.lanes import LANES

from ..arrays import Floats
from ..kernels import attention_operations as ops
from ..kernels import attention_parts as division
from ..kernels import head_operations as heads_of
from ..kernels import thread_team
from ..kernels.context_state import POSITIONS, SIZE, TOKENS
from ..kernels.dots import SUPER
from ..kernels.threads import parallel, spans
from ..kv_cache import KVCache
from ..layer import ForwardContext, Layer
from ..products.gemv import MAX_TOKENS, aligned

MIN_WORK = 1 << 16  # multiplications of a thread


def supports(forward: ForwardContext, layer: Layer, own: LayerHParams) -> bool:
    """Return whether the layer's attention is causal, with at most a window and a cap, over a cache of one text."""
    return (
        forward.cache is not None
        and forward.texts == 1
        and forward.length <= MAX_TOKENS
        and forward.branches is None
        and forward.tree is None
        and forward.keys_after is None
        and forward.observe_values is None
        and forward.precision == "float32"
        and forward.block.causal
        and not forward.hparams.alibi
        and own.chunk is None
        and "attn_sinks.weight" not in layer
        and "indexer.k_proj.weight" not in layer
        and own.key_width % LANES == 0
        and own.value_width % LANES == 0
        and not any(other.kv_source_layer == layer.index for other in forward.hparams.layers)
    )


def attend_few(
    forward: ForwardContext, cache: KVCache, layer: Layer, own: LayerHParams, q: Floats, k: Floats, v: Floats
) -> Floats:
    """Return attention of q (n, heads, d) to the cache, to which k and v (n, kv heads, width) are added: (n, heads *
    dv).
    """
    n, heads, width = q.shape
    groups, value_width, seen = k.shape[1], v.shape[2], int(forward.positions[0])
    cache.reserve(layer.index, seen + n, k.shape[1:], v.shape[1:])
    state, q, k, v = np.zeros(SIZE, np.int64), *map(np.ascontiguousarray, (q, k, v))
    state[TOKENS], state[POSITIONS : POSITIONS + n] = n, seen + np.arange(n)
    tables = [np.array([each.ctypes.data]) for each in cache.arrays(layer.index)]
    work = n * heads * (width + value_width) * (seen + n)
    threads = max(1, min(forward.threads, work // MIN_WORK))
    common: dict[int, Any] = {heads_of.STATE: state, heads_of.CACHE_TYPE: heads_of.CACHE_TYPES[cache.cache_type]}
    for x, table in zip((k, v), tables, strict=True):
        _add_to_cache(x, table, common)
    max_parts, room = (division.max_parts(heads // groups), division.scratch_room(groups, width, value_width))
    columns = -(-heads * value_width // SUPER) * SUPER
    partial = np.empty(division.partial_room(heads, value_width, max_parts, n), np.float32)
    out = aligned((n, columns))
    scratch = np.empty(room * threads, np.float32)
    common |= {
        heads_of.HEADS: heads // groups,
        division.GROUPS: groups,
        division.VALUE_WIDTH: value_width,
        division.WINDOW: own.window or 0,
        division.PARTIAL: partial,
        division.PARTS: max_parts,
    }
    _run(
        threads,
        ops.ATTEND[cache.cache_type](),
        common
        | {
            heads_of.X: q,
            heads_of.X_WIDTH: heads * width,
            heads_of.X_APART: width,
            heads_of.HEAD_WIDTH: width,
            ops.ALL_KEYS: tables[0],
            ops.ALL_VALUES: tables[1],
            heads_of.SCALE: float(own.attention_scale),
            ops.ROOM: room,
            ops.SCRATCH: scratch,
            ops.CAP: float(forward.hparams.attention_softcap or 0),
        },
    )
    _run(threads, ops.finish_heads(), common | {heads_of.OUT: out, heads_of.OUT_WIDTH: columns})
    cache.advance(range(layer.index, layer.index + 1), n)
    return np.ascontiguousarray(out[:, : heads * value_width])


def _add_to_cache(x: Floats, table: NDArray[np.int64], common: dict[int, Any]) -> None:
    """Add keys or values x (n, kv heads, width) to the cache whose address is in the table."""
    groups, width = x.shape[1:]
    fields = {
        heads_of.X: x,
        heads_of.OUT: x,
        heads_of.OUT_WIDTH: groups * width,
        heads_of.OUT_APART: width,
        heads_of.HEADS: groups,
    }
    fields |= {heads_of.HEAD_WIDTH: width, heads_of.CACHE: table}
    thread_team.run_share(thread_team.operation_row(heads_of.prepare_heads(), common | fields), 0, 1)


def _run(threads: int, function: int, fields: dict[int, Any]) -> None:
    """Run an operation by so many threads."""
    row = thread_team.operation_row(function, fields)

    def share(start: int, stop: int) -> None:
        for thread in range(start, stop):
            thread_team.run_share(row, thread, threads)

    parallel(share, spans(threads, 1), threads)
