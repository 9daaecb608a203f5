"""Lightning attention (MiniMax Text-01, M1): a matrix for each head, which forgets at a pace of the head's and layer's.

Source: transformers `models/minimax/modeling_minimax.py`.
"""

from functools import partial

import numpy as np

from . import ops
from .arrays import Floats
from .kernels.scan import scan_heads
from .layer import Layer, Pass
from .recurrence import counted, filled, scanned

EPS = 1e-6  # of the norm behind, whatever the model's is


def lightning(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """The linear attention of one layer over x (tokens, width), with its projections: float32 (tokens, width)."""
    own, threads = forward.numbers(layer), forward.threads
    heads, size = own.heads, own.key_width
    mixed = ops.activated(forward.hyper.activation, forward.project(layer, "attn_qkv", x), threads)
    q, k, v = (np.ascontiguousarray(each) for each in np.split(mixed.reshape(len(x), heads, 3 * size), 3, axis=2))
    rates = np.exp2(-8 / heads * np.arange(1, heads + 1)) * pace(layer.index, len(forward.hyper.layers))
    counted(forward, layer)
    wide = filled(v)
    inputs = wide, np.ones((len(x), heads), np.float32), k, q
    kernel = partial(scan_heads, (-rates).astype(np.float32))
    y = scanned(forward, layer, kernel, inputs, (heads, size, wide.shape[2]), heads)[:, :, :size]
    normed = forward.norm(layer, "attn_norm_2", np.ascontiguousarray(y).reshape(len(x), -1), EPS)
    gate = ops.sigmoid(forward.project(layer, "attn_gate", x), threads=threads)
    return forward.project(layer, "attn_output", np.multiply(gate, normed, out=normed))


def pace(layer: int, layers: int) -> float:
    """By how much slower a layer's heads forget than the first one's."""
    return 1 - layer / (layers - 1 + 1e-5) + 1e-5
