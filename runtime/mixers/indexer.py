"""Indexers of sparse attention (see `graph.indexer`): scores of keys, and the best of them."""

from collections.abc import Iterator

import numpy as np

from quants.errors import ModelError

from ..arrays import Floats, Ids
from ..layer import ForwardContext, Layer
from ..rope import apply_rope

ROOM = 1 << 22  # scores of a block


def rotated(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return x (tokens, heads, width), of which the first values are rotated, or the last."""
    own = forward.numbers(layer)
    if forward.block.indexer_rotates == "last":
        kept, turned = (np.ascontiguousarray(part) for part in np.split(x, [x.shape[2] - own.rope_width], axis=2))
        apply_rope(turned, *forward.rope(own), forward.block.indexer_rope, forward.threads)
        return np.concatenate((kept, turned), axis=2)
    turned = np.ascontiguousarray(x[:, :, : own.rope_width])
    apply_rope(turned, *forward.rope(own), forward.block.indexer_rope, forward.threads)
    return np.concatenate((turned, x[:, :, own.rope_width :]), axis=2)


def pooled(forward: ForwardContext, layer: Layer, keys: Floats, size: int) -> Floats:
    """Return normed and rotated means of each `size` keys (texts, keys, width): float32 (texts, pools, width)."""
    if forward.rotated_at.ndim > 1:
        problem = f"images can't stand in a text of {keys.shape[1]} tokens, of which an indexer chooses"
        raise ModelError(problem, "leave them out")
    pools = keys.shape[1] // size
    angles = forward.rope_at(forward.numbers(layer), np.arange(pools) * size)
    means = []
    for of_text in keys[:, : pools * size].reshape(len(keys), pools, size, -1):
        normed = forward.norm(layer, "indexer.k_norm", of_text.mean(axis=1, dtype=np.float32))[:, None]
        turned = apply_rope(np.ascontiguousarray(normed), *angles, forward.block.indexer_rope, forward.threads)
        means.append(turned[:, 0])
    return np.stack(means)


def weighed_pools(layer: Layer, kept: Floats, size: int) -> Floats:
    """Return means of each `size` keys, weighted by a softmax of gates for each value: float32 (texts, pools, width).

    kept (texts, keys, twice the width): keys, then gates.
    """
    pools, width = kept.shape[1] // size, kept.shape[2] // 2
    each = kept[:, : pools * size].reshape(len(kept), pools, size, 2, width)
    gates = each[:, :, :, 1] + layer.need_array("indexer_compressor_ape.weight")
    shares = np.exp(gates - gates.max(axis=2, keepdims=True))
    mean: Floats = (each[:, :, :, 0] * (shares / shares.sum(axis=2, keepdims=True))).sum(axis=2, dtype=np.float32)
    return mean


def scores(forward: ForwardContext, queries: Floats, weights: Floats | None, keys: Floats, size: int) -> Floats:
    """Return sum(weight relu(query key)) of heads for each key, which represents `size` tokens: float32 (texts, 1, n,
    keys).
    """
    out = np.zeros((forward.texts, 1, forward.length, keys.shape[1]), np.float32)
    for text, of_text in enumerate(keys):
        of_text = np.ascontiguousarray(of_text.T)
        for start, positions in _pieces(forward, keys.shape[1]):
            first = text * forward.length + start
            rows, into = slice(first, first + len(positions)), out[text, 0, start : start + len(positions)]
            for head in range(queries.shape[1]):
                products = np.maximum(np.ascontiguousarray(queries[rows, head]) @ of_text, np.float32(0))
                into += products if weights is None else weights[rows, head, None] * products
            into[(np.arange(keys.shape[1]) + 1) * size > positions[:, None] + 1] = -np.inf
    return out


def block_scores(forward: ForwardContext, queries: Floats, keys: Floats, size: int, local: int) -> Floats:
    """Return the best score of each block of keys for each head: float32 (texts, heads, n, blocks).

    The last `local` blocks of each token count as infinitely good.
    """
    heads, m = queries.shape[1], keys.shape[1]
    blocks = -(-m // size)
    out = np.empty((forward.texts, heads, forward.length, blocks), np.float32)
    for text, head in np.ndindex(forward.texts, heads):
        of_text = np.ascontiguousarray(keys[text].T)
        for start, positions in _pieces(forward, m):
            each = np.full((len(positions), blocks * size), -np.inf, np.float32)
            first = text * forward.length + start
            each[:, :m] = queries[first : first + len(positions), head] @ of_text
            each[np.arange(blocks * size) > positions[:, None]] = -np.inf
            best = each.reshape(len(positions), blocks, size).max(axis=2)
            for back in range(local):
                best[np.arange(len(positions)), np.maximum(positions // size - back, 0)] = np.inf
            out[text, head, start : start + len(positions)] = best
    return out


def hidden_but_best(forward: ForwardContext, scores: Floats, top_k: int, rest: int = 0) -> Floats:
    """Return 0 for the best scores (texts, heads, n, keys) of each token, -inf for others and for what is -inf.

    rest: how many tokens a key represents, if tokens after the last complete key are visible, too; the result then has
    one more key for them. 0: they are not.
    """
    texts, heads, n, keys = scores.shape
    hidden = np.full((texts, heads, n, keys + (rest > 0)), -np.inf, np.float32)
    for text, head in np.ndindex(texts, heads):
        for start, positions in _pieces(forward, keys):
            own = scores[text, head, start : start + len(positions)]
            seen = hidden[text, head, start : start + len(positions)]
            best = np.argpartition(-own, top_k - 1, axis=1)[:, :top_k]
            finite = np.take_along_axis(own, best, axis=1) > -np.inf
            np.put_along_axis(seen, best, np.where(finite, np.float32(0), np.float32(-np.inf)), axis=1)
            if rest:
                seen[np.arange(len(positions)), (positions + 1) // rest] = 0
    return hidden


def _pieces(forward: ForwardContext, keys: int) -> Iterator[tuple[int, Ids]]:
    """Yield the start of each piece of a text's tokens, and their positions."""
    step = max(1, ROOM // keys)
    for start in range(0, forward.length, step):
        yield start, forward.positions[start : start + step]
