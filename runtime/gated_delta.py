"""Gated delta nets (Qwen3-Next, Qwen3.5): what a layer knows of earlier tokens is a matrix for each head.

Source: transformers `models/qwen3_next/modeling_qwen3_next.py`. The cache keeps the last inputs of the convolution
and the matrices.
"""

import numpy as np
from numpy.typing import NDArray

from . import ops
from .arrays import Floats
from .kernels.scan import delta_heads
from .layer import Layer, Pass
from .recurrence import convolved, keep, scan_texts, split, states

LEAST_LENGTH = np.float32(1e-6)  # added to the square of a key's or a query's length


def gated_delta(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """The linear attention of one layer over x (tokens, width), with its projections: float32 (tokens, width)."""
    keys, threads = forward.keys, forward.threads
    size, groups = int(keys.need("ssm.state_size")), int(keys.need("ssm.group_count"))
    heads, inner = int(keys.need("ssm.time_step_rank")), int(keys.need("ssm.inner_size"))
    tail, state = states(forward, layer)
    mixed, tail = convolved(forward, layer, "ssm_conv1d", forward.project(layer, "attn_qkv", x), tail)
    q, k, v = split(ops.activated(forward.hyper.activation, mixed, threads), groups * size, 2 * groups * size)
    alpha, beta, group = _steps(forward, layer, x, heads, groups)
    q, k = (_unit(part.reshape(len(x), groups, size))[:, group] for part in (q, k))
    q *= np.float32(size**-0.5)
    v = v.reshape(len(x), heads, -1)
    a, bias = layer.need_array("ssm_a").reshape(-1), layer.need_array("ssm_dt.bias")
    decay = np.exp(a * ops.softplus(alpha + bias))
    state = np.zeros((forward.texts, heads, size, inner // heads), np.float32) if state is None else state
    y = np.empty_like(v)

    def scan(rows: slice, state: Floats, start: int, stop: int) -> None:
        delta_heads(q[rows], k[rows], v[rows], decay[rows], beta[rows], state, y[rows], start, stop)

    scan_texts(forward, scan, state, heads, size * v.shape[2])
    keep(forward, layer, tail, state)
    normed = forward.norm(layer, "ssm_norm", y).reshape(len(x), inner)
    gate = forward.project(layer, "attn_gate", x)
    return forward.project(layer, "ssm_out", ops.silu_gated(gate, normed, threads=threads))


def _steps(
    forward: Pass, layer: Layer, x: Floats, heads: int, groups: int
) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """How much each head forgets (before the softplus) and learns, (tokens, heads) each; each head's key.

    Qwen3-Next's heads that share a key are neighbours, with one projection by key; in Qwen3.5's files keys take turns.
    """
    if "ssm_ba.weight" in layer:
        both = forward.project(layer, "ssm_ba", x).reshape(len(x), groups, 2, heads // groups)
        beta, alpha = (np.ascontiguousarray(both[:, :, i]).reshape(len(x), heads) for i in (0, 1))
        return alpha, ops.sigmoid(beta), np.arange(heads) // (heads // groups)
    beta, alpha = forward.project(layer, "ssm_beta", x), forward.project(layer, "ssm_alpha", x)
    return alpha, ops.sigmoid(beta), np.arange(heads) % groups


def _unit(x: Floats) -> Floats:
    """Vectors scaled to length one."""
    unit: Floats = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True, dtype=np.float32) + LEAST_LENGTH)
    return unit
