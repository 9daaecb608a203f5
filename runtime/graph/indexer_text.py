"""The executor for texts: operations of sparse attention (see `indexer_operations`)."""

from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..arrays import Floats
from ..layer import ForwardContext
from ..mixers import compressed_attention, indexer
from ..mixers.attention import AttentionOptions, attend
from . import indexer_operations as op
from .read import Read, computes


class Cached(NamedTuple):
    """Values of all tokens so far, (tokens, heads, width)."""

    keys: Floats
    values: Floats


@computes(op.CacheKeys)
def _cache_keys(forward: ForwardContext, o: op.CacheKeys, read: Read) -> Cached:
    k: Floats = read(o.k)
    v: Floats = k[:, :, :0] if o.v is None else read(o.v)
    return Cached(k, v) if forward.cache is None else Cached(*forward.cache.append(o.place, k, v))


@computes(op.IndexerRope)
def _indexer_rope(forward: ForwardContext, o: op.IndexerRope, read: Read) -> Floats:
    return indexer.rotated(forward, o.layer, read(o.x))


@computes(op.LayerNorm)
def _layer_norm(forward: ForwardContext, o: op.LayerNorm, read: Read) -> Floats:
    weight, bias = o.layer.need_array(f"{o.role}.weight"), o.layer.array(f"{o.role}.bias")
    return ops.layer_norm(read(o.x), weight, bias, o.eps, forward.threads)


@computes(op.Candidates)
def _candidates(forward: ForwardContext, o: op.Candidates, read: Read) -> Floats | None:
    given = read(o.x)
    if o.of == "entries":
        return given if given.shape[1] > o.top_k else None
    kept: Floats = given.values if o.of in ("values", "weighted means") else given.keys
    kept = kept.reshape(forward.texts, -1, kept.shape[2])
    count = kept.shape[1] // o.size if o.of != "blocks" else -(-kept.shape[1] // o.size)
    if count <= o.top_k:
        return None
    if o.of == "means":
        return indexer.pooled(forward, o.layer, kept, o.size)
    return indexer.weighed_pools(o.layer, kept, o.size) if o.of == "weighted means" else kept


@computes(op.OnlyIf)
def _only_if(forward: ForwardContext, o: op.OnlyIf, read: Read) -> Any:
    return read(o.x)


@computes(op.IndexerScores)
def _indexer_scores(forward: ForwardContext, o: op.IndexerScores, read: Read) -> Floats:
    weights = None if o.weighed is None else read(o.weighed)
    return indexer.scores(forward, read(o.x), weights, read(o.candidates), o.size)


@computes(op.BlockScores)
def _block_scores(forward: ForwardContext, o: op.BlockScores, read: Read) -> Floats:
    return indexer.block_scores(forward, read(o.x), read(o.candidates), o.size, o.local)


@computes(op.TopKeys)
def _top_keys(forward: ForwardContext, o: op.TopKeys, read: Read) -> Floats:
    """Return the mask of selected keys of each text, (texts, heads, tokens, keys)."""
    hidden = indexer.hidden_but_best(forward, read(o.x), o.top_k, o.size if o.rest else 0)
    if o.size > 1:
        hidden = np.repeat(hidden, o.size, axis=3)[..., : int(forward.positions[-1]) + 1]
    return np.repeat(hidden, o.heads, axis=1) if o.heads > 1 else hidden


@computes(op.RopeTail)
def _rope_tail(forward: ForwardContext, o: op.RopeTail, read: Read) -> Floats:
    return compressed_attention.turned(forward, o.own, read(o.x), forward.positions, o.back)


@computes(op.Compress)
def _compress(forward: ForwardContext, o: op.Compress, read: Read) -> Floats:
    return compressed_attention.compressed(forward, o.layer, o.role, read(o.x), read(o.gates), o.ratio)


@computes(op.CompressedAttention)
def _compressed_attention(forward: ForwardContext, o: op.CompressedAttention, read: Read) -> Floats:
    entries, chosen = (None if value is None else read(value) for value in (o.entries, o.chosen))
    return compressed_attention.attend_to_entries(forward, o.layer, read(o.q), read(o.k), o.ratio, entries, chosen)


@computes(op.BlockAttention)
def _block_attention(forward: ForwardContext, o: op.BlockAttention, read: Read) -> Floats:
    q: Floats = read(o.q)
    own = forward.numbers(o.layer)
    keys = np.concatenate((forward.shared_keys[o.layer.index][0], read(o.k)))
    options = AttentionOptions(window=own.window, causal=False, sinks=o.layer.array("attn_sinks.weight"))
    mixed = attend(q, keys, keys, forward.positions, own.attention_scale, options, threads=forward.threads)
    return mixed.reshape(q.shape)


@computes(op.GroupedLinear)
def _grouped_linear(forward: ForwardContext, o: op.GroupedLinear, read: Read) -> Floats:
    x, rows = read.rows(o.x), o.layer.need(f"{o.role}.weight").shape[0] // o.groups
    return np.concatenate(
        [
            forward.project(o.layer, o.role, np.ascontiguousarray(part), np.arange(i * rows, (i + 1) * rows))
            for i, part in enumerate(np.split(x, o.groups, axis=1))
        ],
        axis=1,
    )
