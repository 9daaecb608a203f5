"""Attention to a window of tokens and to entries that stand for whole blocks of them (DeepSeek V4).

Source: transformers `models/deepseek_v4/modeling_deepseek_v4.py`. All heads share one key a token, which is its value,
too: what attention makes of the rotated part is turned back. Every so many tokens become an entry, a mean weighted by a
softmax for each value. Where blocks overlap, half of what each token gives is for the next block's entry, and an
indexer chooses which entries a token looks at.
"""

from dataclasses import replace

import numpy as np

from archs.hyper import LayerHyper

from . import ops
from .arrays import Floats, Ids
from .attention import attend
from .layer import Layer, Pass
from .rope import apply_rope, attention_factor, rope_table

QUERIES = 256  # that look at the same part of the text together
RATIOS = "attention.compress_ratios"
PLACES = {"attn_compressor": 0, "indexer_compressor": 2}  # of what a layer keeps in the cache beside its keys


def compressed_attention(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """Self-attention of one layer over x (tokens, width), with its output projection: float32 (tokens, width)."""
    own, (low, q), keys = forward.numbers(layer), _queries(forward, layer, x), shared_keys(forward, layer, x)
    if forward.cache is not None:  # in place of values, which are the keys
        keys, _ = forward.cache.append(layer.index, keys, keys[:, :, :0])
    ratio = int(forward.keys.of_layer(RATIOS, layer.index))
    entries, chosen = np.empty((forward.texts, 0, own.key_width), np.float32), None
    if ratio:
        entries = compressed(forward, layer, "attn_compressor", x, ratio)
        if "indexer.attn_q_b.weight" in layer:
            chosen = chosen_entries(forward, layer, x, low, ratio)
    mixed = np.concatenate([
        _attend(forward, layer, q_of, keys_of, entries[text], ratio, None if chosen is None else chosen[text])
        for text, (q_of, keys_of) in enumerate(zip(*(np.split(e, forward.texts) for e in (q, keys)), strict=True))
    ])  # fmt: skip
    return _output(forward, layer, mixed.reshape(q.shape))


def block_attention(forward: Pass, layer: Layer, x: Floats, before: Floats) -> Floats:
    """The same of a block x (tokens, width) that sees all of itself, and of keys before it (tokens, 1, width)."""
    own, (_, q) = forward.numbers(layer), _queries(forward, layer, x)
    keys = np.concatenate((before, shared_keys(forward, layer, x)))
    mixed = attend(
        q, keys, keys, q_positions=forward.positions, scale=own.attention_scale, window=own.window, causal=False,
        sinks=layer.array("attn_sinks.weight"), threads=forward.threads,
    )  # fmt: skip
    return _output(forward, layer, mixed.reshape(q.shape))


def _queries(forward: Pass, layer: Layer, x: Floats) -> tuple[Floats, Floats]:
    """The narrow vectors that queries are made of, (tokens, rank), and queries, (tokens, heads, width)."""
    own = forward.numbers(layer)
    low = forward.norm(layer, "attn_q_a_norm", forward.project(layer, "attn_q_a", x))
    q = forward.project(layer, "attn_q_b", low).reshape(len(x), own.heads, own.key_width)
    return low, turned(forward, own, ops.rms_norm(q, None, forward.hyper.eps, forward.threads), forward.positions)


def shared_keys(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """The one key of each token, which all heads share: float32 (tokens, 1, width)."""
    keys = forward.norm(layer, "attn_kv_a_norm", forward.project(layer, "attn_kv", x))[:, None]
    return turned(forward, forward.numbers(layer), keys, forward.positions)


def _output(forward: Pass, layer: Layer, mixed: Floats) -> Floats:
    """The output projection of mixed (tokens, heads, width): each group of heads is narrowed by rows of its own, all
    are widened together.
    """
    own, tokens = forward.numbers(layer), len(mixed)
    mixed = turned(forward, own, mixed, forward.positions, back=True).reshape(tokens, -1)
    groups = int(forward.keys.need("attention.output_group_count"))
    rows = layer.need("attn_output_a.weight").shape[0] // groups
    parts = np.split(mixed, groups, axis=1)
    low = [
        forward.project(layer, "attn_output_a", np.ascontiguousarray(part), np.arange(i * rows, (i + 1) * rows))
        for i, part in enumerate(parts)
    ]
    return forward.project(layer, "attn_output_b", np.concatenate(low, axis=1))


def _attend(
    forward: Pass, layer: Layer, q: Floats, keys: Floats, entries: Floats, ratio: int, chosen: Floats | None
) -> Floats:
    """What one text's tokens make of keys (all tokens so far, 1, width) and entries (blocks, width)."""
    own, found = forward.numbers(layer), []
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
            bias = np.concatenate((bias, _behind(at, ratio, blocks)), axis=1)
        both = np.concatenate((keys[first:last], seen))
        found.append(attend(
            q[part], both, both, q_positions=np.zeros(len(at), np.int64), scale=own.attention_scale, causal=False,
            sinks=layer.array("attn_sinks.weight"), bias=np.broadcast_to(bias, (own.heads, *bias.shape)),
            threads=forward.threads,
        ))  # fmt: skip
    return np.concatenate(found)


def _behind(at: Ids, ratio: int, blocks: int) -> Floats:
    """-inf for the blocks that end behind tokens at these positions, 0 for others, float32 (tokens, blocks)."""
    hidden: Floats = np.where(np.arange(blocks) >= (at[:, None] + 1) // ratio, np.float32(-np.inf), np.float32(0))
    return hidden


def compressed(forward: Pass, layer: Layer, name: str, x: Floats, ratio: int) -> Floats:
    """The entries of all whole blocks so far: float32 (texts, blocks, width). x: the layer's input (tokens, width)."""
    values, gates = (forward.project(layer, f"{name}_{part}", x) for part in ("kv", "gate"))
    parts, cache, seen = np.concatenate((values, gates), axis=1), forward.cache, int(forward.positions[0])
    if cache is None:
        return np.stack([_entries(forward, layer, name, each, ratio, 0) for each in np.split(parts, forward.texts)])
    place = -1 - 4 * layer.index - PLACES[name]  # beside the keys
    kept, _ = cache.append(place, parts[:, None], parts[:, None, :0])
    before = max(0, seen // ratio - 1)  # the block whose second half goes into the next entry
    begun = _entries(forward, layer, name, kept[before * ratio :, 0], ratio, before)[seen // ratio - before :]
    rows = np.zeros((len(x), 1, begun.shape[1]), np.float32)  # the one of a block's last token is its entry
    rows[(np.arange(len(begun)) + seen // ratio + 1) * ratio - 1 - seen, 0] = begun
    rows, _ = cache.append(place - 1, rows, rows[:, :, :0])
    return rows[ratio - 1 :: ratio, 0][None]


def _entries(forward: Pass, layer: Layer, name: str, parts: Floats, ratio: int, first: int) -> Floats:
    """The entries of whole blocks of one text: float32 (blocks, width). parts: values and gates of its tokens from
    block `first` on, of which nothing is known before. Overlapping blocks: the first entry lacks what that gives.
    """
    own, width = forward.numbers(layer), layer.need(f"{name}_norm.weight").shape[0]
    blocks = len(parts) // ratio
    each = parts[: blocks * ratio].reshape(blocks, ratio, 2, parts.shape[1] // 2)
    values, gates = each[:, :, 0], each[:, :, 1] + layer.need_array(f"{name}_ape.weight")
    if values.shape[2] > width and blocks:  # the first half of each is for the next block
        values, gates = (
            np.concatenate((np.concatenate((np.full_like(part[:1, :, :width], none), part[:-1, :, :width])),
                            part[:, :, width:]), axis=1)
            for part, none in ((values, 0), (gates, -np.inf))
        )  # fmt: skip
    shares = np.exp(gates - gates.max(axis=1, keepdims=True))
    mean = (values * (shares / shares.sum(axis=1, keepdims=True))).sum(axis=1, dtype=np.float32)[:, :width]
    normed = forward.norm(layer, f"{name}_norm", np.ascontiguousarray(mean))
    return turned(forward, own, normed[:, None], (first + np.arange(blocks)) * ratio)[:, 0]


def chosen_entries(forward: Pass, layer: Layer, x: Floats, low: Floats, ratio: int) -> Floats:
    """0 for the entries that each token looks at and -inf for others, float32 (texts, tokens, blocks).

    x: the layer's input (tokens, width); low: the narrow vectors that queries are made of (tokens, rank).
    """
    own = forward.numbers(layer)
    most, heads = (int(forward.keys.need(f"attention.indexer.{key}")) for key in ("top_k", "head_count"))
    keys = compressed(forward, layer, "indexer_compressor", x, ratio)
    blocks = keys.shape[1]
    hidden = np.broadcast_to(_behind(forward.positions, ratio, blocks), (forward.texts, forward.length, blocks))
    if blocks <= most:
        return hidden
    queries = forward.project(layer, "indexer.attn_q_b", low).reshape(len(x), heads, -1)
    queries = turned(forward, own, queries, forward.positions)
    weights = forward.project(layer, "indexer.proj", x) * np.float32((heads * queries.shape[2]) ** -0.5)
    found = np.full(hidden.shape, -np.inf, np.float32)
    for text in range(forward.texts):
        of_text = slice(text * forward.length, (text + 1) * forward.length)
        scores = np.zeros(hidden.shape[1:], np.float32)
        for head in range(heads):
            products = np.ascontiguousarray(queries[of_text, head]) @ keys[text].T
            scores += weights[of_text, head, None] * np.maximum(products, np.float32(0))
        scores += hidden[text]
        best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
        np.put_along_axis(found[text], best, np.take_along_axis(hidden[text], best, axis=1), axis=1)
    return found


def turned(forward: Pass, own: LayerHyper, x: Floats, positions: Ids, back: bool = False) -> Floats:
    """x (tokens, heads, width) of equal texts with the last values of each head rotated, or turned back.

    Yarn's temperature, which other models have, is not in these.
    """
    scaling = forward.network.scaling if own.rope_scaled else None
    if scaling is not None:
        scaling = replace(scaling, attn_factor=scaling.attn_factor / attention_factor(scaling))
    cos, sin = rope_table(own.rope_width, own.rope_base, scaling, None, positions)
    if len(positions) < len(x):
        cos, sin = (np.tile(each, (len(x) // len(positions), 1)) for each in (cos, sin))
    rotated = np.ascontiguousarray(x[:, :, -own.rope_width :])
    apply_rope(rotated, cos, -sin if back else sin, "adjacent", forward.threads)
    return np.concatenate((x[:, :, : -own.rope_width], rotated), axis=2)
