"""Encoders that begin with SAM's: DeepSeek-OCR and Unlimited-OCR, with CLIP's after it, and DeepSeek-OCR 2, with a
Qwen2 and queries.

Sources: transformers `models/{unlimited_ocr,deepseek_ocr2}/modeling_*.py`, `models/sam/`.
"""

import numpy as np

from .. import ops
from ..arrays import Floats
from ..mixers.attention import AttentionOptions, attend
from .convolution import convolved
from .encoder import Parts, rotation, sampling, squares
from .layers import Vit, Weights

SAM_EPS, CLIP_EPS = 1e-6, 1e-5  # of norms, missing in files
QUERIES_BASE = 1_000_000.0  # of the Qwen2's rotation
FEWER = 144  # this number of embeddings has queries of its own


def deepseek_ocr(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return CLIP's output for SAM's output, side by side with that output itself."""
    features = sam(encoder, weights, pixels)
    rows, columns = features.shape[1:]
    x = np.ascontiguousarray(features.reshape(len(features), -1).T)
    table = weights.values("v.position_embd.weight")
    table = table.reshape(-1, table.shape[-1])
    positions = stretched(table[1:].reshape(*_square(len(table) - 1), -1), rows, columns)
    classes = weights.values("v.class_embd").reshape(1, -1)
    inside = np.concatenate([classes + table[:1], x + positions.reshape(rows * columns, -1)])
    vit = Vit(encoder.heads, int(encoder.key("block_count")), CLIP_EPS, "gelu_quick", progress=encoder.progress)
    inside = vit.run(weights, weights.norm("v.pre_ln", inside, CLIP_EPS, "layer"))[1:]
    return weights.project("mm.model.fc", np.concatenate([inside, x], axis=1))


def deepseek_ocr2(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return the outputs of queries after SAM's output: each attends to all of it and to the queries before it."""
    features = sam(encoder, weights, pixels)
    seen = np.ascontiguousarray(features.reshape(len(features), -1).T)
    asked = weights.values(f"v.resample_query_{768 if len(seen) <= FEWER else 1024}.weight")
    x = np.concatenate([seen, asked.reshape(-1, seen.shape[1])])
    width = x.shape[1] // encoder.heads
    rates = QUERIES_BASE ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    turns = rotation(np.outer(np.arange(len(x)), rates), "halves")
    vit = encoder.vit(
        "silu", norm="rms", kv_heads=int(encoder.key("attention.head_count_kv")), rotate=turns, causal_from=len(seen)
    )
    x = weights.norm("v.post_ln", vit.run(weights, x)[len(seen) :], vit.eps, "rms")
    return weights.project("mm.model.fc", x)


def sam(encoder: Parts, weights: Weights, pixels: Floats) -> Floats:
    """Return the output of SAM's layers and the convolutions after them: float32 (channels, rows, columns), a quarter
    as many a side.
    """
    x = convolved(weights, "v.sam.patch_embd", pixels, step=encoder.patch_size)
    rows, columns = x.shape[1:]
    table = weights.values("v.sam.pos_embd.weight")
    x = np.ascontiguousarray(x.transpose(1, 2, 0)) + stretched(table.reshape(table.shape[-3:]), rows, columns)
    for i in range(int(encoder.key("sam.block_count"))):
        x = _layer(encoder, weights, f"v.sam.blk.{i}.", x)
    x = x.transpose(2, 0, 1)
    for convolution, norm, border in (("neck.0", "neck.1", 0), ("neck.2", "neck.3", 1)):
        x = convolved(weights, f"v.sam.{convolution}", x, border=border).transpose(1, 2, 0)
        normed = weights.norm(f"v.sam.{norm}", np.ascontiguousarray(x).reshape(-1, x.shape[2]), SAM_EPS, "layer")
        x = normed.reshape(x.shape).transpose(2, 0, 1)
    for name in ("net_2", "net_3"):
        x = convolved(weights, f"v.sam.{name}", x, step=2, border=1)
    return x


def _layer(encoder: Parts, weights: Weights, at: str, x: Floats) -> Floats:
    """Return a layer's output for x: float32 (rows, columns, width)."""
    rows, columns, width = x.shape
    normed = weights.norm(f"{at}pre_ln", x.reshape(-1, width), SAM_EPS, "layer").reshape(x.shape)
    window = int(encoder.key("window_size"))
    # layers with global attention have more distances
    if weights.need(f"{at}attn.pos_h.weight").shape[0] == 2 * window - 1:
        filled = np.pad(normed, ((0, -rows % window), (0, -columns % window), (0, 0)))
        high, wide = filled.shape[:2]
        parts = squares(filled.reshape(-1, width), high, wide, window).reshape(-1, window, window, width)
        each = np.stack([_attention(encoder, weights, at, part) for part in parts])
        each = each.reshape(high // window, wide // window, window, window, width)
        joined = each.transpose(0, 2, 1, 3, 4).reshape(filled.shape)
        mixed = joined[:rows, :columns]
    else:
        mixed = _attention(encoder, weights, at, normed)
    x = x + mixed
    flat = weights.norm(f"{at}post_ln", x.reshape(-1, width), SAM_EPS, "layer")
    inner = ops.activated("gelu", weights.project(f"{at}mlp.lin1", flat), weights.threads)
    return x + weights.project(f"{at}mlp.lin2", inner).reshape(x.shape)


def _attention(encoder: Parts, weights: Weights, at: str, x: Floats) -> Floats:
    """Return attention within a window, with scores biased by distances in rows and in columns."""
    rows, columns, width = x.shape
    heads = int(encoder.key("sam.head_count"))
    fused = weights.project(f"{at}attn.qkv", np.ascontiguousarray(x).reshape(-1, width))
    q, k, v = (part.reshape(len(fused), heads, -1) for part in np.split(fused, 3, axis=1))
    of_rows, of_columns = (
        _of_distances(weights, f"{at}attn.pos_{axis}", count) for axis, count in (("h", rows), ("w", columns))
    )
    parts = []
    for head in range(heads):  # one at a time: biases of all pairs fill the memory
        queries, keys, values = (np.ascontiguousarray(each[:, head : head + 1]) for each in (q, k, v))
        asked = queries.reshape(rows, columns, -1)
        by_row = np.einsum("rcd,rkd->rck", asked, of_rows, optimize=True)
        by_column = np.einsum("rcd,ckd->rck", asked, of_columns, optimize=True)
        bias = (by_row[:, :, :, None] + by_column[:, :, None, :]).reshape(1, rows * columns, rows * columns)
        options, scale = AttentionOptions(causal=False, bias=bias), q.shape[2] ** -0.5
        parts.append(attend(queries, keys, values, np.arange(len(q)), scale, options, threads=weights.threads))
    mixed = np.concatenate(parts, axis=1)
    return weights.project(f"{at}attn.out", mixed).reshape(x.shape)


def _of_distances(weights: Weights, name: str, side: int) -> Floats:
    """Return learned embeddings of the distances between all places, float32 (side, side, width)."""
    table = weights.values(f"{name}.weight")
    table = sampling(len(table), 2 * side - 1, "linear") @ table
    places = np.arange(side)
    out: Floats = table[places[:, None] - places + side - 1]
    return out


def stretched(table: Floats, rows: int, columns: int) -> Floats:
    """Return positions (side, side, width) for another grid, antialiased when it is smaller: (rows, columns, width)."""
    if table.shape[:2] == (rows, columns):
        return table
    by_row = np.einsum("rs,sct->rct", sampling(len(table), rows, "smooth cubic"), table)
    return np.asarray(np.einsum("kc,rct->rkt", sampling(table.shape[1], columns, "smooth cubic"), by_row), np.float32)


def _square(count: int) -> tuple[int, int]:
    side = round(count**0.5)
    return side, side
