"""Attention to a window of tokens and to compressed entries for blocks of earlier ones (DeepSeek V4).

Source: transformers `models/deepseek_v4/modeling_deepseek_v4.py`. All heads share one key a token, which is also its
value: the rotated part of attention's output is rotated back. Each block of tokens becomes an entry, a mean weighted by
a softmax for each value. If blocks overlap, half of each token's values are for the next block's entry, and an indexer
selects the entries that a token attends to.
"""

from dataclasses import replace

import numpy as np

from archs.hparams.model_hparams import LayerHParams

from ..arrays import Floats, Ids
from ..layer import ForwardContext, Layer
from ..rope import apply_rope, attention_factor, rope_table
from .attention import AttentionOptions, attend

QUERIES = 256  # that look at the same part of the text together
PLACES = {"attn_compressor": 0, "indexer_compressor": 2}  # of what a layer keeps in the cache in addition to its keys


def attend_to_entries(
    forward: ForwardContext,
    layer: Layer,
    q: Floats,
    keys: Floats,
    ratio: int,
    entries: Floats | None,
    chosen: Floats | None,
) -> Floats:
    """Return attention of queries (tokens, heads, width) to keys (tokens, 1, width), which are added to the cache, and
    to entries.

    entries (texts, blocks, width): None for none. chosen: 0 for visible entries, -inf for others, (texts, 1, n,
    blocks).
    """
    if forward.cache is not None:  # in place of values, which are the keys
        keys, _ = forward.cache.append(layer.index, keys, keys[:, :, :0])
    entries = np.empty((forward.texts, 0, keys.shape[2]), np.float32) if entries is None else entries
    mixed = np.concatenate(
        [
            _attend(forward, layer, q_of, keys_of, entries[text], ratio, None if chosen is None else chosen[text, 0])
            for text, (q_of, keys_of) in enumerate(zip(*(np.split(e, forward.texts) for e in (q, keys)), strict=True))
        ]
    )
    return mixed.reshape(q.shape)


def _attend(
    forward: ForwardContext, layer: Layer, q: Floats, keys: Floats, entries: Floats, ratio: int, chosen: Floats | None
) -> Floats:
    """Return attention of one text's tokens to keys (all tokens so far, 1, width) and entries (blocks, width)."""
    own, parts = forward.numbers(layer), []
    for start in range(0, len(q), QUERIES):
        part = slice(start, start + QUERIES)
        at = forward.positions[part]
        first = max(0, int(at[0]) - own.window + 1) if own.window else 0
        last, blocks = int(at[-1]) + 1, (int(at[-1]) + 1) // ratio if ratio else 0
        distance = at[:, None] - np.arange(first, last)
        hidden = (distance < 0) | (distance >= (own.window or last + 1))
        bias = np.where(hidden, np.float32(-np.inf), np.float32(0))
        seen = entries[:blocks, None]
        if chosen is not None:
            bias = np.concatenate((bias, chosen[part, :blocks]), axis=1)
        elif ratio:
            bias = np.concatenate((bias, _later_blocks(at, ratio, blocks)), axis=1)
        both = np.concatenate((keys[first:last], seen))
        options = AttentionOptions(
            causal=False, sinks=layer.array("attn_sinks.weight"), bias=np.broadcast_to(bias, (own.heads, *bias.shape))
        )
        parts.append(
            attend(
                q[part], both, both, np.zeros(len(at), np.int64), own.attention_scale, options, threads=forward.threads
            )
        )
    return np.concatenate(parts)


def _later_blocks(at: Ids, ratio: int, blocks: int) -> Floats:
    """Return -inf for the blocks that end after tokens at these positions, 0 for others, float32 (tokens, blocks)."""
    hidden: Floats = np.where(np.arange(blocks) >= (at[:, None] + 1) // ratio, np.float32(-np.inf), np.float32(0))
    return hidden


def compressed(forward: ForwardContext, layer: Layer, name: str, values: Floats, gates: Floats, ratio: int) -> Floats:
    """Return the entries of all whole blocks so far: float32 (texts, blocks, width). values, gates: of these tokens."""
    parts, cache, seen = np.concatenate((values, gates), axis=1), forward.cache, int(forward.positions[0])
    if cache is None:
        return np.stack([_entries(forward, layer, name, each, ratio, 0) for each in np.split(parts, forward.texts)])
    place = -1 - 4 * layer.index - PLACES[name]  # next to the keys
    kept, _ = cache.append(place, parts[:, None], parts[:, None, :0])
    before = max(0, seen // ratio - 1)  # the block whose second half goes into the next entry
    begun = _entries(forward, layer, name, kept[before * ratio :, 0], ratio, before)[seen // ratio - before :]
    rows = np.zeros((len(values), 1, begun.shape[1]), np.float32)  # the one of a block's last token is its entry
    rows[(np.arange(len(begun)) + seen // ratio + 1) * ratio - 1 - seen, 0] = begun
    rows, _ = cache.append(place - 1, rows, rows[:, :, :0])
    return rows[ratio - 1 :: ratio, 0][None]


def _entries(forward: ForwardContext, layer: Layer, name: str, parts: Floats, ratio: int, first: int) -> Floats:
    """Return the entries of whole blocks of one text: float32 (blocks, width).

    parts: values and gates of its tokens from block `first` on. Of overlapping blocks, the first entry lacks the part
    that comes from the block before.
    """
    own, width = forward.numbers(layer), layer.need(f"{name}_norm.weight").shape[0]
    blocks = len(parts) // ratio
    each = parts[: blocks * ratio].reshape(blocks, ratio, 2, parts.shape[1] // 2)
    values, gates = each[:, :, 0], each[:, :, 1] + layer.need_array(f"{name}_ape.weight")
    if values.shape[2] > width and blocks:  # the first half of each is for the next block
        values, gates = (
            np.concatenate(
                (np.concatenate((np.full_like(part[:1, :, :width], none), part[:-1, :, :width])), part[:, :, width:]),
                axis=1,
            )
            for part, none in ((values, 0), (gates, -np.inf))
        )
    shares = np.exp(gates - gates.max(axis=1, keepdims=True))
    mean = (values * (shares / shares.sum(axis=1, keepdims=True))).sum(axis=1, dtype=np.float32)[:, :width]
    normed = forward.norm(layer, f"{name}_norm", np.ascontiguousarray(mean))
    return turned(forward, own, normed[:, None], (first + np.arange(blocks)) * ratio)[:, 0]


def turned(forward: ForwardContext, own: LayerHParams, x: Floats, positions: Ids, back: bool = False) -> Floats:
    """Return x (tokens, heads, width) of equal texts with the last values of each head rotated, or rotated back.

    YaRN's attention factor is left out.
    """
    cos, sin = tail_angles(forward, own, positions)
    if len(positions) < len(x):
        cos, sin = (np.tile(each, (len(x) // len(positions), 1)) for each in (cos, sin))
    rotated = np.ascontiguousarray(x[:, :, -own.rope_width :])
    apply_rope(rotated, cos, -sin if back else sin, "adjacent", forward.threads)
    return np.concatenate((x[:, :, : -own.rope_width], rotated), axis=2)


def tail_angles(forward: ForwardContext, own: LayerHParams, positions: Ids) -> tuple[Floats, Floats]:
    """Return cos and sin of positions, (positions, rope_width / 2), without yarn's temperature."""
    scaling = forward.network.scaling if own.rope_scaled else None
    if scaling is not None:
        scaling = replace(scaling, attn_factor=scaling.attn_factor / attention_factor(scaling))
    return rope_table(own.rope_width, own.rope_base, scaling, None, positions)
