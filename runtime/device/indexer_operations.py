"""Operations of sparse attention on a device (see `runtime.graph.indexer_operations`)."""

from typing import Any, NamedTuple

import numpy as np
import torch

from archs.hparams.model_hparams import LayerHParams
from quants.errors import ModelError

from ..arrays import Ids
from ..graph import indexer_operations as op
from ..layer import Layer
from ..mixers.attention import BIDIRECTIONAL
from ..mixers.compressed_attention import PLACES, tail_angles
from .attention import Masked, attend
from .attention_operations import masked, rotate, visible
from .context import DeviceContext, layer_norm
from .table import Values, computes


class Cached(NamedTuple):
    """Values of all tokens so far, (tokens, heads, width)."""

    keys: torch.Tensor
    values: torch.Tensor


@computes(op.CacheKeys)
def _cache_keys(context: DeviceContext, o: op.CacheKeys, read: Values) -> Cached:
    k: torch.Tensor = read(o.k)
    return Cached(*context.cached(o.place, k, k[:, :, :0] if o.v is None else read(o.v)))


@computes(op.IndexerRope)
def _indexer_rope(context: DeviceContext, o: op.IndexerRope, read: Values) -> torch.Tensor:
    x, own, kind = read(o.x), context.forward.numbers(o.layer), context.block.indexer_rope
    if context.block.indexer_rotates != "last":
        return rotate(x, context.rope(own), kind)
    start = x.shape[2] - own.rope_width
    return torch.cat((x[..., :start], rotate(x[..., start:], context.rope(own), kind)), dim=2)


@computes(op.LayerNorm)
def _layer_norm(context: DeviceContext, o: op.LayerNorm, read: Values) -> torch.Tensor:
    weight = context.weights.need_array(o.layer, f"{o.role}.weight")
    return layer_norm(read(o.x), weight, context.weights.array(o.layer, f"{o.role}.bias"), o.eps)


@computes(op.Candidates)
def _candidates(context: DeviceContext, o: op.Candidates, read: Values) -> torch.Tensor | None:
    given = read(o.x)
    if o.of == "entries":
        return given if given.shape[1] > o.top_k else None
    kept: torch.Tensor = given.values if o.of in ("values", "weighted means") else given.keys
    kept = kept.reshape(context.texts, -1, kept.shape[2])
    count = kept.shape[1] // o.size if o.of != "blocks" else -(-kept.shape[1] // o.size)
    if count <= o.top_k:
        return None
    if o.of == "means":
        return _pooled(context, o.layer, kept, o.size)
    return _weighted_pools(context, o.layer, kept, o.size) if o.of == "weighted means" else kept


def _pooled(context: DeviceContext, layer: Layer, keys: torch.Tensor, size: int) -> torch.Tensor:
    """Return normed and rotated means of each `size` keys (texts, keys, width): (texts, pools, width)."""
    forward = context.forward
    if forward.rotated_at.ndim > 1:
        problem = f"images can't stand in a text of {keys.shape[1]} tokens, of which an indexer chooses"
        raise ModelError(problem, "leave them out")
    pools = keys.shape[1] // size
    angles = forward.rope_at(forward.numbers(layer), np.arange(pools) * size)
    cos, sin = (context.tensor(np.tile(each, (len(keys), 1))) for each in angles)
    means = keys[:, : pools * size].reshape(len(keys) * pools, size, -1).mean(dim=1)
    normed = context.norm(layer, "indexer.k_norm", means)[:, None]
    return rotate(normed, (cos, sin), context.block.indexer_rope).reshape(len(keys), pools, -1)


def _weighted_pools(context: DeviceContext, layer: Layer, kept: torch.Tensor, size: int) -> torch.Tensor:
    """Return means of each `size` keys, weighted by a softmax of gates for each value: (texts, pools, width)."""
    pools, width = kept.shape[1] // size, kept.shape[2] // 2
    each = kept[:, : pools * size].reshape(len(kept), pools, size, 2, width)
    gates = each[:, :, :, 1] + context.weights.need_array(layer, "indexer_compressor_ape.weight")
    return (each[:, :, :, 0] * torch.softmax(gates, dim=2)).sum(dim=2)


@computes(op.OnlyIf)
def _only_if(context: DeviceContext, o: op.OnlyIf, read: Values) -> Any:
    return read(o.x)


@computes(op.IndexerScores)
def _indexer_scores(context: DeviceContext, o: op.IndexerScores, read: Values) -> torch.Tensor:
    queries, keys = read(o.x), read(o.candidates)
    weights = None if o.weighed is None else read(o.weighed)
    texts, length = context.texts, context.length
    scores = queries.new_zeros((texts, length, keys.shape[1]))
    for head in range(queries.shape[1]):
        products = torch.relu(queries[:, head].reshape(texts, length, -1) @ keys.transpose(1, 2))
        scores = scores + (products if weights is None else weights[:, head].reshape(texts, length, 1) * products)
    positions = context.tensor(context.forward.positions)
    ends = (torch.arange(keys.shape[1], device=context.device) + 1) * o.size
    return scores.masked_fill(ends > positions[:, None] + 1, -torch.inf)[:, None]


@computes(op.BlockScores)
def _block_scores(context: DeviceContext, o: op.BlockScores, read: Values) -> torch.Tensor:
    queries, keys = read(o.x), read(o.candidates)
    texts, length, m = context.texts, context.length, keys.shape[1]
    blocks = -(-m // o.size)
    q = queries.reshape(texts, length, queries.shape[1], -1).transpose(1, 2)
    scores = q @ keys.transpose(1, 2)[:, None]
    positions = context.tensor(context.forward.positions)
    scores = scores.masked_fill(torch.arange(m, device=context.device) > positions[:, None], -torch.inf)
    scores = torch.nn.functional.pad(scores, (0, blocks * o.size - m), value=-torch.inf)
    best = scores.reshape(*scores.shape[:3], blocks, o.size).amax(dim=-1)
    for back in range(o.local):
        place = (positions // o.size - back).clamp(min=0)[None, None, :, None].expand(*best.shape[:3], 1)
        best = best.scatter(3, place, torch.inf)
    return best


@computes(op.TopKeys)
def _top_keys(context: DeviceContext, o: op.TopKeys, read: Values) -> torch.Tensor:
    """Return the mask of selected keys of each text, (texts, heads, tokens, keys)."""
    scores: torch.Tensor = read(o.x)
    best = scores.topk(min(o.top_k, scores.shape[3]), dim=3)
    shown = best.values.masked_fill(best.values > -torch.inf, 0)
    hidden = torch.full_like(scores, -torch.inf).scatter(3, best.indices, shown)
    if o.rest:
        hidden = torch.nn.functional.pad(hidden, (0, 1), value=-torch.inf)
        place = ((context.tensor(context.forward.positions) + 1) // o.size)[None, None, :, None]
        hidden = hidden.scatter(3, place.expand(*hidden.shape[:3], 1), 0.0)
    if o.size > 1:
        hidden = hidden.repeat_interleave(o.size, dim=3)[..., : int(context.forward.positions[-1]) + 1]
    return hidden.repeat_interleave(o.heads, dim=1) if o.heads > 1 else hidden


@computes(op.RopeTail)
def _rope_tail(context: DeviceContext, o: op.RopeTail, read: Values) -> torch.Tensor:
    return _turned(context, o.own, read(o.x), context.forward.positions, o.back)


def _turned(
    context: DeviceContext, own: LayerHParams, x: torch.Tensor, positions: Ids, back: bool = False
) -> torch.Tensor:
    """Return x (tokens, heads, width) of equal texts with the last values of each head rotated, or turned back."""
    cos, sin = tail_angles(context.forward, own, positions)
    times = len(x) // max(1, len(positions))
    angles = context.tensor(np.tile(cos, (times, 1))), context.tensor(np.tile(-sin if back else sin, (times, 1)))
    start = x.shape[2] - own.rope_width
    return torch.cat((x[..., :start], rotate(x[..., start:], angles, "adjacent")), dim=2)


@computes(op.Compress)
def _compress(context: DeviceContext, o: op.Compress, read: Values) -> torch.Tensor:
    """Return the entries of all whole blocks so far: (texts, blocks, width)."""
    parts, forward = torch.cat((read(o.x), read(o.gates)), dim=1), context.forward
    if forward.cache is None:
        each = (_entries(context, o, text, 0) for text in parts.chunk(context.texts))
        return torch.stack(tuple(each))
    seen, ratio, place = int(forward.positions[0]), o.ratio, -1 - 4 * o.layer.index - PLACES[o.role]
    kept, _ = context.cached(place, parts[:, None], parts[:, None, :0])
    before = max(0, seen // ratio - 1)  # the block whose second half goes into the next entry
    begun = _entries(context, o, kept[before * ratio :, 0], before)[seen // ratio - before :]
    rows = parts.new_zeros((len(parts), 1, begun.shape[1]))  # the one of a block's last token is its entry
    rows[(torch.arange(len(begun), device=context.device) + seen // ratio + 1) * ratio - 1 - seen, 0] = begun
    rows, _ = context.cached(place - 1, rows, rows[:, :, :0])
    return rows[ratio - 1 :: ratio, 0][None]


def _entries(context: DeviceContext, o: op.Compress, parts: torch.Tensor, first: int) -> torch.Tensor:
    """Return the entries of whole blocks of one text, from block `first` on: (blocks, width)."""
    own, width = context.forward.numbers(o.layer), o.layer.need(f"{o.role}_norm.weight").shape[0]
    blocks = len(parts) // o.ratio
    each = parts[: blocks * o.ratio].reshape(blocks, o.ratio, 2, parts.shape[1] // 2)
    values, gates = each[:, :, 0], each[:, :, 1] + context.weights.need_array(o.layer, f"{o.role}_ape.weight")
    if values.shape[2] > width and blocks:  # the first half of each is for the next block
        values, gates = _with_halves(values, width, 0.0), _with_halves(gates, width, -torch.inf)
    mean = (values * torch.softmax(gates, dim=1)).sum(dim=1)[:, :width]
    normed = context.norm(o.layer, f"{o.role}_norm", mean)
    return _turned(context, own, normed[:, None], (first + np.arange(blocks)) * o.ratio)[:, 0]


def _with_halves(part: torch.Tensor, width: int, nothing: float) -> torch.Tensor:
    """Return the first halves of the blocks before, `nothing` before the first one, and the second halves of each."""
    before = torch.cat((torch.full_like(part[:1, :, :width], nothing), part[:-1, :, :width]))
    return torch.cat((before, part[:, :, width:]), dim=1)


@computes(op.CompressedAttention)
def _compressed_attention(context: DeviceContext, o: op.CompressedAttention, read: Values) -> torch.Tensor:
    forward, q, k = context.forward, read(o.q), read(o.k)
    keys, _ = context.cached(o.layer.index, k, k[:, :, :0])
    own, m = forward.numbers(o.layer), len(keys) // context.texts
    at = context.tensor(forward.positions)
    distance = at[:, None] - torch.arange(m, device=context.device)
    hidden = (distance < 0) | (distance >= (own.window or m + 1))
    bias = torch.zeros((1, 1, *hidden.shape), device=context.device).masked_fill(hidden, -torch.inf)
    both = keys.reshape(context.texts, m, -1)
    if o.entries is not None:
        entries = read(o.entries)
        both = torch.cat((both, entries), dim=1)
        bias = torch.cat((bias.expand(context.texts, -1, -1, -1), _seen_entries(context, o, read, entries, at)), dim=3)
    whole = visible(context, BIDIRECTIONAL, forward.positions, both.shape[1])
    sinks = context.weights.array(o.layer, "attn_sinks.weight")
    joined = both.reshape(-1, 1, both.shape[2])
    seen = Masked(whole, own.attention_scale, sinks=sinks, bias=bias)
    return attend(q, joined, joined, context.texts, seen).reshape(q.shape)


def _seen_entries(
    context: DeviceContext, o: op.CompressedAttention, read: Values, entries: torch.Tensor, at: torch.Tensor
) -> torch.Tensor:
    """Return 0 for the entries that tokens see, -inf for others: (texts, 1, tokens, blocks)."""
    if o.chosen is not None and (chosen := read(o.chosen)) is not None:
        return chosen[..., : entries.shape[1]]
    after = torch.arange(entries.shape[1], device=context.device) >= (at[:, None] + 1) // o.ratio
    shown = torch.zeros(after.shape, device=context.device).masked_fill(after, -torch.inf)
    return shown.expand(context.texts, 1, -1, -1)


@computes(op.BlockAttention)
def _block_attention(context: DeviceContext, o: op.BlockAttention, read: Values) -> torch.Tensor:
    q, own = read(o.q), context.forward.numbers(o.layer)
    before = torch.as_tensor(context.forward.shared_keys[o.layer.index][0], device=context.device)
    keys = torch.cat((before, read(o.k)))
    sinks = context.weights.array(o.layer, "attn_sinks.weight")
    seen = masked(context, own.window, len(keys), own.attention_scale, causal=False, sinks=sinks)
    return attend(q, keys, keys, 1, seen).reshape(q.shape)


@computes(op.GroupedLinear)
def _grouped_linear(context: DeviceContext, o: op.GroupedLinear, read: Values) -> torch.Tensor:
    x, rows = read.rows(o.x), o.layer.need(f"{o.role}.weight").shape[0] // o.groups
    parts = enumerate(x.chunk(o.groups, dim=1))
    made = (context.project(o.layer, o.role, part, slice(i * rows, (i + 1) * rows)) for i, part in parts)
    return torch.cat(tuple(made), dim=1)
