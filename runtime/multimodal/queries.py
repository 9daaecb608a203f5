"""Learned queries that read the output of layers: BLIP-2's querying transformer (Granite Speech, Granite 4 Vision) and
MiniCPM-V's resampler. Sources: transformers `models/{blip_2,granite_speech,granite4_vision}/modeling_*.py`, and the
code published with MiniCPM-V 2.5 to 4.5.
"""

import numpy as np

from quants.errors import ModelError

from .. import ops
from ..arrays import Floats
from ..mixers.attention import BIDIRECTIONAL, attend
from .encoder import Parts, squares
from .layers import Weights

READER_EPS = 1e-12  # of BLIP-2's norms
READER_HEAD = 64  # the width of its heads, by default
RESAMPLER_EPS, RESAMPLER_HEAD, RESAMPLER_BASE = 1e-6, 128, 10_000.0  # of norms, of heads, and of sinusoids


def reading(weights: Weights, at: str, read: Floats, seen: Floats, windows: int, heads: int) -> Floats:
    """Return one layer: self-attention of queries within a window, cross-attention to the window, and a net.

    read: float32 (windows * queries, width). seen: (windows * patches or frames, width).
    """
    read = _attention(weights, f"{at}self_attn_", read, read, windows, heads)
    read = _attention(weights, f"{at}cross_attn_", read, seen, windows, heads)
    inner = ops.activated("gelu", weights.project(f"{at}ffn_up", read), weights.threads)
    return weights.norm(f"{at}ffn_norm", read + weights.project(f"{at}ffn_down", inner), READER_EPS, "layer")


def _attention(weights: Weights, at: str, read: Floats, seen: Floats, windows: int, heads: int) -> Floats:
    given = {"q": read, "k": seen, "v": seen}
    q, k, v = (weights.project(f"{at}{name}", x).reshape(len(x), heads, -1) for name, x in given.items())
    mixed = attend(
        q,
        k,
        v,
        np.arange(len(read) // windows),
        q.shape[2] ** -0.5,
        BIDIRECTIONAL,
        sequences=windows,
        threads=weights.threads,
    )
    return weights.norm(f"{at}norm", read + weights.project(f"{at}out", mixed), READER_EPS, "layer")


def granite4(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return the outputs of several projectors of some layers' outputs, side by side: one of them is added to the text
    model's embeddings, each other one to the input of a layer.
    """
    layers, offsets = encoder.key("feature_layer"), encoder.key("projector.spatial_offsets")
    kept: dict[int, Floats] = {}
    wanted = {int(layer) for layer in layers}

    def keep(layer: int, x: Floats) -> None:
        if layer in wanted:
            kept[layer] = x

    vit = encoder.vit("gelu_tanh", outputs=keep)
    vit.run(weights, encoder.positioned(encoder.patches(pixels)), stop=min(max(wanted) + 1, vit.count))
    if missing := wanted - {*kept}:
        raise ModelError(f"the file takes outputs of layer {min(missing)}; there are {vit.count}")
    rows, _ = encoder.grid(pixels)
    parts = [
        _windows_read(encoder, weights, i, kept[int(layer)], rows, int(offset))
        for i, (layer, offset) in enumerate(zip(layers, offsets, strict=True))
    ]
    return np.concatenate(parts, axis=1)


def _windows_read(encoder: Parts, weights: Weights, number: int, x: Floats, side: int, offset: int) -> Floats:
    """Return a projector's output for patches (side * side, width): queries of each window, by row and column."""
    at, eps = f"v.proj_blk.{number}.", 1e-6
    queries, window = int(encoder.key("projector.query_side")), int(encoder.key("projector.window_side"))
    if queries > window or side % window:
        raise ModelError(f"the file has {queries} queries a side of windows of {window}, in {side} patches a side")
    x = weights.norm(f"{at}norm", x, eps, "layer")
    fewer = side * queries // window
    if offset < 0:  # means of areas
        small = _area_means(x.reshape(side, side, -1), fewer)
    else:  # one of each square of four
        row, column = divmod(offset, 2)
        small = x.reshape(side, side, -1)[row::2, column::2]
    windows = (side // window) ** 2
    asked = squares(small.reshape(fewer * fewer, -1), fewer, fewer, queries) + weights.values(f"{at}query")
    seen = squares(x, side, side, window) + weights.values(f"{at}img_pos")
    width = x.shape[1]
    read = weights.norm(f"{at}post_norm", asked.reshape(-1, width), READER_EPS, "layer")
    read = reading(weights, at, read, seen.reshape(-1, width), windows, max(1, width // READER_HEAD))
    each = read.reshape(side // window, side // window, queries, queries, width).transpose(0, 2, 1, 3, 4)
    return weights.project(f"{at}linear", np.ascontiguousarray(each).reshape(fewer * fewer, width))


def _area_means(x: Floats, wanted: int) -> Floats:
    """Return means of areas that may overlap: (wanted, wanted, width) of (side, side, width)."""
    ends = [(i * len(x) // wanted, -(-(i + 1) * len(x) // wanted)) for i in range(wanted)]
    means = [[x[top:bottom, left:right].mean(axis=(0, 1)) for left, right in ends] for top, bottom in ends]
    return np.asarray(means, np.float32)


def resampler(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return MiniCPM-V's embeddings before 4.6: queries read SigLIP's output, with sinusoidal positions of columns and
    rows.
    """
    rows, columns = encoder.grid(pixels)
    vit = encoder.vit("gelu_tanh")
    x = vit.run(weights, encoder.patches(pixels) + encoder.nearest(rows, columns))
    x = weights.norm("v.post_ln", x, vit.eps, "layer")
    v = weights.norm("resampler.ln_kv", weights.project("resampler.kv", x), RESAMPLER_EPS, "layer")
    row, column = np.divmod(np.arange(rows * columns), columns)
    rates = RESAMPLER_BASE ** -(np.arange(v.shape[1] // 4) / (v.shape[1] / 4))
    waves = [wave(np.outer(place, rates)) for place in (column, row) for wave in (np.sin, np.cos)]
    k = v + np.concatenate(waves, axis=1).astype(np.float32)
    asked = weights.norm("resampler.ln_q", weights.values("resampler.query"), RESAMPLER_EPS, "layer")
    heads = max(1, v.shape[1] // RESAMPLER_HEAD)
    given = {"q": asked, "k": k, "v": v}
    parts = (
        weights.project(f"resampler.attn.{name}", each).reshape(len(each), heads, -1) for name, each in given.items()
    )
    q, k, v = (np.ascontiguousarray(each) for each in parts)
    mixed = attend(q, k, v, np.arange(len(q)), q.shape[2] ** -0.5, BIDIRECTIONAL, threads=weights.threads)
    mixed = weights.norm("resampler.ln_post", weights.project("resampler.attn.out", mixed), RESAMPLER_EPS, "layer")
    return weights.project("resampler.proj", mixed)
