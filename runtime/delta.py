"""Gated delta nets (Qwen3-Next, Qwen3.5): what a layer knows of earlier tokens is a matrix for each head.

Reference: transformers `models/qwen3_next/modeling_qwen3_next.py`. The cache keeps the last inputs of the convolution
and the matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.hyper import Keys

from . import ops
from .kernels.delta import delta_heads
from .kernels.threads import run as share_out
from .kernels.threads import shares
from .ssm import WORTH_A_THREAD, convolved, keep, parts, states, texts

if TYPE_CHECKING:
    from .graph import Layer, Pass

Floats = NDArray[np.float32]

LEAST_LENGTH = np.float32(1e-6)  # added to the square of a key's or a query's length


def gated_delta(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """The linear attention of one layer, with its projections: float32 (tokens, width)."""
    keys = Keys(run.model.architecture.name, run.model.metadata)
    size, groups = int(keys.need("ssm.state_size")), int(keys.need("ssm.group_count"))
    heads, inner = int(keys.need("ssm.time_step_rank")), int(keys.need("ssm.inner_size"))
    tail, state = states(run, index)
    mixed, tail = convolved(run, layer, "ssm_conv1d", run.project(layer, "attn_qkv", x), tail)
    q, k, v = parts(ops.activated(run.model.hyper.activation, mixed), [groups * size, 2 * groups * size])
    alpha, beta, group = _steps(run, layer, x, heads, groups)
    q, k = (_unit(part.reshape(len(x), groups, size))[:, group] for part in (q, k))
    q *= np.float32(size**-0.5)
    v = v.reshape(len(x), heads, -1)
    a, bias = layer.need("ssm_a").float32().reshape(-1), layer.need("ssm_dt.bias").float32()
    decay = np.exp(a * ops.softplus(alpha + bias))
    if state is None:
        state = np.zeros((run.texts, heads, size, inner // heads), np.float32)
    y = np.empty_like(v)
    for text, rows in enumerate(texts(run)):
        now = state[text]

        def scan(start: int, stop: int, rows: slice = rows, now: Floats = now) -> None:
            delta_heads(q[rows], k[rows], v[rows], decay[rows], beta[rows], now, y[rows], start, stop)

        share_out(scan, shares(heads, WORTH_A_THREAD // (run.length * size * v.shape[2]) + 1))
    keep(run, index, tail, state)
    normed = run.norm(layer, "ssm_norm", y).reshape(len(x), inner)
    return run.project(layer, "ssm_out", ops.silu_gated(run.project(layer, "attn_gate", x), normed))


def _steps(run: Pass, layer: Layer, x: Floats, heads: int, groups: int) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """How much each head forgets (before the softplus) and learns, (tokens, heads) each; each head's key.

    Qwen3-Next's heads that share a key are neighbours, with one projection by key; in Qwen3.5's files keys take turns.
    """
    if "ssm_ba.weight" in layer:
        both = run.project(layer, "ssm_ba", x).reshape(len(x), groups, 2, heads // groups)
        beta, alpha = (np.ascontiguousarray(both[:, :, i]).reshape(len(x), heads) for i in (0, 1))
        return alpha, ops.sigmoid(beta), np.arange(heads) // (heads // groups)
    beta, alpha = run.project(layer, "ssm_beta", x), run.project(layer, "ssm_alpha", x)
    return alpha, ops.sigmoid(beta), np.arange(heads) % groups


def _unit(x: Floats) -> Floats:
    """Vectors scaled to length one."""
    unit: Floats = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True, dtype=np.float32) + LEAST_LENGTH)
    return unit
