"""MiMo's audio encoder: layers that look back, codes of their output, and layers over groups of the codes' embeddings.
Defined by llama.cpp's `tools/mtmd/models/mimo-audio.cpp`, as transformers has no class for it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .. import ops
from ..arrays import Floats, Ids
from .encoder import ROPE_BASE, rotation
from .layers import Rotation, Vit, Weights

ADDED_LAYER = 2  # its output is added to the last layer's
LOCAL_ROPE_BASE = 640_000.0


def encoded(
    weights: Weights, vit: Vit, x: Floats, windowed: Sequence[int], codes: Sequence[int], local: int, group: int
) -> Floats:
    """Return embeddings of audio, float32 (tokens, width of the text model), one for each group.

    x: convolved, (frames, width). windowed: of each layer 0 for a window, -1 for full attention to the past. codes:
    entries of each codebook. local: layers over groups.
    """
    everything, kept = [np.arange(len(x))], [x]

    def keep(layer: int, output: Floats) -> None:
        if layer == ADDED_LAYER:
            kept[0] = output

    layers = replace(
        vit,
        rotate=_turned(np.arange(len(x)), x.shape[1] // vit.heads, ROPE_BASE),
        causal_from=0,
        outputs=keep,
        windows=lambda layer: everything if windowed[layer] >= 0 else None,
    )
    x = layers.run(weights, x) + kept[0]
    x = weights.norm("a.post_ln", x, vit.eps, "layer")
    kernel = weights.values("a.downsample.conv.weight")
    pairs = x[: len(x) // 2 * 2].reshape(len(x) // 2, 2, -1).transpose(0, 2, 1).reshape(len(x) // 2, -1)
    x = ops.activated("gelu", pairs @ kernel.reshape(len(kernel), -1).T, weights.threads)
    x = weights.norm("a.downsample.norm", x, vit.eps, "layer")
    x = _embedded(weights, coded(weights, codes, x))
    x = np.pad(x, ((0, -len(x) % group), (0, 0)))
    places = np.arange(len(x))
    groups: list[Ids] = list(places.reshape(-1, group))
    over = replace(
        vit,
        count=local,
        activation="silu",
        norm="rms",
        part="mm.a",
        blocks="local_blk",
        windows=lambda layer: groups,
        rotate=_turned(places % group, x.shape[1] // vit.heads, LOCAL_ROPE_BASE),
        progress=None,
        reach=None,
    )
    x = weights.norm("mm.a.local_norm", over.run(weights, x), vit.eps, "rms").reshape(len(groups), -1)
    return weights.net("mm.a.mlp.1", "mm.a.mlp.2", x)


def coded(weights: Weights, sizes: Sequence[int], x: Floats) -> Ids:
    """Return the nearest entry of each codebook to the residual of those before it, int64 (codebooks, frames)."""
    books, codes = weights.values("a.rvq.codebook.weight"), []
    for book, size in zip(books, sizes, strict=True):
        entries = book[:size]
        codes.append(np.argmax(2 * x @ entries.T - (entries**2).sum(axis=1), axis=1))
        x = x - entries[codes[-1]]
    return np.stack(codes)


def _embedded(weights: Weights, codes: Ids) -> Floats:
    tables = weights.values("mm.a.code_embd.weight")
    summed: Floats = np.sum([table[own] for table, own in zip(tables, codes, strict=True)], axis=0, dtype=np.float32)
    return summed


def _turned(places: Ids, width: int, base: float) -> Rotation:
    rates = base ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    return rotation(np.outer(places, rates), "halves")
