"""N-gram embeddings (Qwen4 Exp): table rows found by hashes of the last few token ids, gated by each stream and added
to it in one layer.

Source: transformers `models/qwen4_exp/modeling_qwen4_exp.py`. The cache keeps the latest ids, and the inputs of the
convolution over the rows, under a layer number of its own.
"""

import math

import numpy as np

from . import ops
from .arrays import Floats, Ids
from .layer import ForwardContext, Layer
from .products.matmul import gather
from .streams import stream_norm

MIN_GATE = np.float32(1e-6)  # before a root is taken


def look_up(forward: ForwardContext, ids: Ids) -> Floats:
    """Return the table's rows for each token, one after the other: float32 (tokens, 1, width). ids (tokens,)."""
    keys = forward.keys
    size, each = int(keys.need("ple.ngram_size")), int(keys.need("ple.heads_per_ngram"))
    end = int(keys.need("ple.eos_token_id"))
    before = _kept(forward) or (np.full((forward.texts, size - 1), end, np.float32),)
    known = np.concatenate([before[0].astype(np.int64), ids.reshape(forward.texts, -1)], axis=1)
    _keep(forward, forward.length, 0, known.astype(np.float32), size - 1, before[1:])
    names = ("layer_multipliers", "head_offsets", "head_vocab_sizes")
    factors, offsets, sizes = (np.asarray(keys.need(f"ple.{name}"), np.int64) for name in names)
    rows, mixed = [], known[:, size - 1 :] * factors[0]
    open_ = np.ones(mixed.shape, bool)  # no end of text in between so far
    for distance in range(1, size):
        earlier = known[:, size - 1 - distance : known.shape[1] - distance]
        open_ &= earlier != end
        mixed = mixed ^ np.where(open_, earlier, end) * factors[distance]
        heads = slice((distance - 1) * each, distance * each)
        rows.append(mixed[:, :, None] % sizes[heads] + offsets[heads])
    embedded = gather(
        forward.global_tensors.need("per_layer_token_embd.weight"), np.concatenate(rows, axis=2).reshape(-1)
    )
    return embedded.reshape(len(ids), 1, -1)


def ngrams(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return the layer's addition to the streams x: float32 (tokens, streams * width)."""
    width, embedded = forward.hparams.width, forward.layer_inputs
    assert embedded is not None  # the file's table, which `archs.validation.model_validators` has checked
    shape = len(x), -1, width
    inputs = forward.inputs(embedded[:, 0])
    keys = stream_norm(forward, layer, "ple_norm_key.weight", forward.project(layer, "ple_key", inputs))
    queries = stream_norm(forward, layer, "ple_norm_query.weight", x)
    scores = (keys * queries).reshape(shape).sum(axis=2, dtype=np.float32) * np.float32(1 / math.sqrt(width))
    gates = ops.sigmoid(np.sqrt(np.maximum(np.abs(scores), MIN_GATE)) * np.sign(scores))
    values = forward.project(layer, "ple_value", inputs)
    gated: Floats = (gates[:, :, None] * values[:, None]).reshape(x.shape)
    normed = stream_norm(forward, layer, "ple_norm_conv.weight", gated)
    return gated + ops.silu(_convolved(forward, layer, normed), threads=forward.threads)


def _convolved(forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
    """Return each channel's convolution; its taps are as far apart as the n-grams are long."""
    taps, apart = layer.need_array("ple_conv1d.weight"), int(forward.keys.need("ple.ngram_size"))
    back = (taps.shape[1] - 1) * apart
    body, kept = x.reshape(forward.texts, forward.length, -1), _kept(forward)
    before = kept[1] if len(kept) > 1 else np.zeros((forward.texts, back, x.shape[1]), np.float32)
    known = np.concatenate((before, body), axis=1)
    _keep(forward, 0, 1, known, back, kept)
    out = np.zeros_like(body)
    for tap in range(taps.shape[1]):
        out += known[:, tap * apart : tap * apart + forward.length] * taps[:, tap]
    return out.reshape(x.shape)


def _place(forward: ForwardContext) -> int:
    return -1 - int(forward.keys.need("ple.layers")[0])


def _kept(forward: ForwardContext) -> tuple[Floats, ...]:
    return forward.cache.states(_place(forward)) if forward.cache is not None else ()


def _keep(
    forward: ForwardContext, tokens: int, which: int, known: Floats, count: int, others: tuple[Floats, ...]
) -> None:
    """Store the last `count` of what is known (texts, positions, …) as the state of that number."""
    cache, place = forward.cache, _place(forward)
    if cache is None:
        return
    last = known[:, known.shape[1] - count :].copy()
    cache.keep(place, tokens, *((last, *others) if which == 0 else (others[0], last)))
    if cache.memory:
        ends = range(max(0, forward.length - cache.memory - 1), forward.length)
        cache.remember(place, which, [known[:, i + 1 : i + 1 + count].copy() for i in ends])
