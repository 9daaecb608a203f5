"""Kimi's delta attention (KDA, Kimi Linear): a gated delta net in which every channel of a key forgets by itself.

Source: transformers `models/kimi_linear/modeling_kimi_linear.py`.
"""

import numpy as np

from . import ops
from .arrays import Floats
from .gated_delta import unit
from .kernels.scan import delta_channels
from .layer import Layer, Pass
from .recurrence import convolved_by, filled, scanned, split


def kimi_delta(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """The linear attention of one layer over x (tokens, width), with its projections: float32 (tokens, width)."""
    size, heads, threads = int(forward.keys.need("kda.head_dim")), forward.numbers(layer).heads, forward.threads
    inputs, kinds = forward.inputs(x), "qkv"
    mixed = np.concatenate([forward.project(layer, f"attn_{kind}", inputs) for kind in kinds], axis=1)
    taps = [layer.need_array(f"ssm_conv1d_{kind}.weight") for kind in kinds]
    taps = [each.reshape(-1, each.shape[-1]) for each in taps]
    mixed = convolved_by(forward, layer, np.concatenate(taps), None, mixed)
    parts = split(ops.activated(forward.hyper.activation, mixed, threads), heads * size, 2 * heads * size)
    q, k, v = (part.reshape(len(x), heads, size) for part in parts)
    q, k = unit(q) * np.float32(size**-0.5), unit(k)
    steps = forward.project(layer, "ssm_f_b", forward.project(layer, "ssm_f_a", inputs))
    steps = ops.softplus(steps + layer.need_array("ssm_dt.bias"), threads=threads).reshape(len(x), heads, size)
    decay = np.exp(layer.need_array("ssm_a").reshape(heads, 1) * steps)
    beta = ops.sigmoid(forward.project(layer, "ssm_beta", inputs), threads=threads)
    wide = filled(v)
    shape = heads, size, wide.shape[2]
    y = scanned(forward, layer, delta_channels, (wide, q, k, decay, beta), shape, heads)[:, :, :size]
    normed = forward.norm(layer, "ssm_norm", np.ascontiguousarray(y)).reshape(len(x), -1)
    gate = forward.project(layer, "ssm_g_b", forward.project(layer, "ssm_g_a", inputs))
    return forward.project(layer, "attn_output", normed * ops.sigmoid(gate, threads=threads))
