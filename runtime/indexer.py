"""The indexer of sparse latent attention (DeepSeek V3.2, GLM 5): which keys a token looks at.

Source: transformers `models/deepseek_v32/modeling_deepseek_v32.py`, `models/glm_moe_dsa/`. Narrow queries and one
narrow key a token are compared, and the best keys alone are seen. Up to that many tokens nothing is hidden.
"""

import numpy as np

from quants.errors import ModelError

from . import ops
from .arrays import Floats
from .layer import Layer, Pass
from .rope import apply_rope

ROOM = 1 << 22  # scores of a block


def indexer_keys(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """What the indexer keeps of x (tokens, width): float32 (tokens, 1, its width)."""
    weight, bias = layer.need_array("indexer.k_norm.weight"), layer.array("indexer.k_norm.bias")
    eps = forward.block.indexer_eps or forward.hyper.eps
    keys = ops.layer_norm(forward.project(layer, "indexer.attn_k", x), weight, bias, eps, forward.threads)
    return _rotated(forward, layer, keys[:, None])


def chosen_keys(forward: Pass, layer: Layer, x: Floats, low: Floats, keys: Floats) -> Floats | None:
    """0 for the keys that each token looks at and -inf for others, float32 (texts, tokens, keys); None for all.

    x: the layer's input (tokens, width); low: the narrow vectors that queries are made of (tokens, rank); keys: of all
    tokens so far, as `indexer_keys` gives them. Keys behind a token count for nothing here.
    """
    model_keys = forward.keys
    most, heads = int(model_keys.need("attention.indexer.top_k")), int(model_keys.need("attention.indexer.head_count"))
    n, m = forward.length, len(keys) // forward.texts
    if m <= most:
        return None
    width = keys.shape[2]
    queries = forward.project(layer, "indexer.attn_q_b", low).reshape(len(x), heads, width)
    queries = _rotated(forward, layer, queries)
    weights = forward.project(layer, "indexer.proj", x) * np.float32((heads * width) ** -0.5)
    hidden = np.full((forward.texts, n, m), -np.inf, np.float32)
    step = max(1, ROOM // m)
    for text in range(forward.texts):
        of_text = np.ascontiguousarray(keys[text * m : (text + 1) * m, 0].T)
        for start in range(0, n, step):
            rows = slice(text * n + start, text * n + min(n, start + step))
            scores = np.zeros((rows.stop - rows.start, m), np.float32)
            for head in range(heads):
                scores += weights[rows, head, None] * np.maximum(queries[rows, head] @ of_text, np.float32(0))
            positions = forward.positions[start : start + step]
            scores[np.arange(m) > positions[:, None]] = -np.inf
            best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
            np.put_along_axis(hidden[text, start : start + step], best, np.float32(0), axis=1)
    return hidden


def _rotated(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """x (tokens, heads, width), of which the first values are rotated, or the last."""
    own = forward.numbers(layer)
    if forward.block.indexer_rotates == "last":
        kept, turned = (np.ascontiguousarray(part) for part in np.split(x, [x.shape[2] - own.rope_width], axis=2))
        apply_rope(turned, *forward.rope(own), forward.block.indexer_rope, forward.threads)
        return np.concatenate((kept, turned), axis=2)
    turned = np.ascontiguousarray(x[:, :, : own.rope_width])
    apply_rope(turned, *forward.rope(own), forward.block.indexer_rope, forward.threads)
    return np.concatenate((turned, x[:, :, own.rope_width :]), axis=2)


def block_keys(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """What the indexer of blocks (MiniMax M3) keeps of x (tokens, width): float32 (tokens, 1, its width)."""
    keys = forward.project(layer, "indexer.k_proj", x)
    return _rotated(forward, layer, forward.norm(layer, "indexer.k_norm", keys)[:, None])


def chosen_blocks(forward: Pass, layer: Layer, x: Floats, keys: Floats) -> Floats | None:
    """0 for the blocks of keys that each token's groups of heads look at and -inf for others, float32 (texts, heads,
    tokens, keys); None for all.

    Source: transformers `models/minimax_m3_vl/`. A block counts as its best key; the last blocks are always seen.
    """
    model_keys = forward.keys
    heads, most = int(model_keys.need("attention.indexer.head_count")), int(model_keys.need("attention.indexer.top_k"))
    size = int(model_keys.need("attention.indexer.block_size"))
    local = int(model_keys.need("attention.indexer.local_blocks"))
    n, m, share = forward.length, len(keys) // forward.texts, forward.numbers(layer).heads // heads
    blocks = -(-m // size)
    if blocks <= most:
        return None
    width = keys.shape[2]
    queries = forward.norm(layer, "indexer.q_norm", forward.project(layer, "indexer.q_proj", x).reshape(-1, width))
    queries = _rotated(forward, layer, queries.reshape(len(x), heads, width))
    hidden = np.full((forward.texts, heads, n, blocks), -np.inf, np.float32)
    for text, head in np.ndindex(forward.texts, heads):
        of_text = np.ascontiguousarray(keys[text * m : (text + 1) * m, 0].T)
        for start in range(0, n, max(1, ROOM // m)):
            positions = forward.positions[start : start + max(1, ROOM // m)]
            scores = np.full((len(positions), blocks * size), -np.inf, np.float32)
            first = text * n + start
            scores[:, :m] = queries[first : first + len(positions), head] @ of_text
            scores[np.arange(blocks * size) > positions[:, None]] = -np.inf
            best = scores.reshape(len(positions), blocks, size).max(axis=2)
            for back in range(local):
                best[np.arange(len(positions)), np.maximum(positions // size - back, 0)] = np.inf
            places = np.argpartition(-best, most - 1, axis=1)[:, :most]
            np.put_along_axis(hidden[text, head, start : start + len(positions)], places, np.float32(0), axis=1)
    return np.repeat(np.repeat(hidden, size, axis=3)[..., :m], share, axis=1)


def pooled_keys(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """What an indexer that takes several keys together (Qwen4 Exp) keeps of x (tokens, width): (tokens, 1, width)."""
    return forward.project(layer, "indexer.k_proj", x)[:, None]


def chosen_pools(forward: Pass, layer: Layer, x: Floats, keys: Floats) -> Floats | None:
    """0 for the keys that each token looks at and -inf for others, float32 (texts, 1, tokens, keys); None for all.

    Source: transformers `models/qwen4_exp/`. Neighbouring keys count as their mean; those behind the last that are
    complete before a token are always seen.
    """
    model_keys, own = forward.keys, forward.numbers(layer)
    size = int(model_keys.of_layer("attention.compress_ratios", layer.index))
    heads = int(model_keys.need("attention.indexer.head_count"))
    most = int(model_keys.need("attention.indexer.top_k")) // size
    n, m, width = forward.length, len(keys) // forward.texts, keys.shape[2]
    blocks = m // size
    if blocks <= most:
        return None
    if forward.rotated_at.ndim > 1:
        raise ModelError(f"pictures can't stand in a text of {m} tokens, of which an indexer chooses", "leave them out")
    queries = forward.norm(layer, "indexer.q_norm", forward.project(layer, "indexer.q_proj", x).reshape(-1, width))
    queries = _rotated(forward, layer, queries.reshape(len(x), heads, width))
    angles = forward.rope_at(own, np.arange(blocks) * size)
    hidden = np.full((forward.texts, 1, n, blocks + 1), -np.inf, np.float32)
    for text in range(forward.texts):
        of_text = keys[text * m : text * m + blocks * size, 0].reshape(blocks, size, width)
        pooled = forward.norm(layer, "indexer.k_norm", of_text.mean(axis=1, dtype=np.float32))[:, None]
        pooled = apply_rope(np.ascontiguousarray(pooled), *angles, forward.block.indexer_rope, forward.threads)[:, 0]
        for start in range(0, n, max(1, ROOM // m)):
            positions = forward.positions[start : start + max(1, ROOM // m)]
            rows = slice(text * n + start, text * n + start + len(positions))
            scores = np.zeros((len(positions), blocks), np.float32)
            for head in range(heads):
                scores += np.maximum(queries[rows, head] @ pooled.T, np.float32(0))
            scores[(np.arange(blocks) + 1) * size > positions[:, None] + 1] = -np.inf
            best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
            seen = hidden[text, 0, start : start + len(positions)]
            np.put_along_axis(seen, best, np.float32(0), axis=1)
            seen[np.arange(len(positions)), (positions + 1) // size] = 0  # what is not complete yet
    return np.repeat(hidden, size, axis=3)[..., :m]


def gated_keys(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """What an indexer that weighs several keys together (GLM-5-Next) keeps of x (tokens, width): a key and as many
    gates, float32 (tokens, 1, twice its width).
    """
    weight, bias = layer.need_array("indexer.k_norm.weight"), layer.array("indexer.k_norm.bias")
    eps = forward.block.indexer_eps or forward.hyper.eps
    keys = ops.layer_norm(forward.project(layer, "indexer.attn_k", x), weight, bias, eps, forward.threads)
    return np.concatenate((keys, forward.project(layer, "indexer_compressor_gate", x)), axis=1)[:, None]


def chosen_gated_pools(forward: Pass, layer: Layer, x: Floats, low: Floats, kept: Floats) -> Floats | None:
    """0 for the keys that each token looks at and -inf for others, float32 (texts, tokens, keys); None for all.

    Source: transformers `models/glm5_next/`. Of neighbouring keys a mean counts, weighted by a softmax for each value;
    those behind the last that are complete before a token are always seen. low, kept: see `chosen_keys`.
    """
    size, width = int(forward.keys.need("attention.indexer.kpool")), kept.shape[2] // 2
    heads = int(forward.keys.need("attention.indexer.head_count"))
    most = int(forward.keys.need("attention.indexer.top_k")) // size
    n, m = forward.length, len(kept) // forward.texts
    pools = m // size
    if pools <= most:
        return None
    queries = forward.project(layer, "indexer.attn_q_b", low).reshape(len(x), heads, width)
    weights = forward.project(layer, "indexer.proj", x) * np.float32((heads * width) ** -0.5)
    hidden = np.full((forward.texts, n, pools + 1), -np.inf, np.float32)
    for text in range(forward.texts):
        of_text = kept[text * m : text * m + pools * size, 0].reshape(pools, size, 2, width)
        gates = of_text[:, :, 1] + layer.need_array("indexer_compressor_ape.weight")
        shares = np.exp(gates - gates.max(axis=1, keepdims=True))
        pooled = (of_text[:, :, 0] * (shares / shares.sum(axis=1, keepdims=True))).sum(axis=1, dtype=np.float32).T
        for start in range(0, n, max(1, ROOM // m)):
            positions = forward.positions[start : start + max(1, ROOM // m)]
            rows = slice(text * n + start, text * n + start + len(positions))
            scores = np.zeros((len(positions), pools), np.float32)
            for head in range(heads):
                scores += weights[rows, head, None] * np.maximum(queries[rows, head] @ pooled, np.float32(0))
            scores[(np.arange(pools) + 1) * size > positions[:, None] + 1] = -np.inf
            best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
            seen = hidden[text, start : start + len(positions)]
            np.put_along_axis(seen, best, np.float32(0), axis=1)
            seen[np.arange(len(positions)), (positions + 1) // size] = 0  # what is not complete yet
    return np.repeat(hidden, size, axis=2)[..., :m]
