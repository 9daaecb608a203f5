"""State-space layers (Mamba, Mamba-2) and short convolutions: what they know of earlier tokens is of fixed size.

Source: transformers `models/mamba/modeling_mamba.py`, `models/mamba2/`, `models/lfm2/`.
"""

from functools import partial

import numpy as np

from quants.kernels.lanes import LANES

from . import ops
from .arrays import Floats
from .kernels.scan import scan_channels, scan_heads
from .layer import Layer, Pass
from .recurrence import convolved, filled, scanned, split


def mamba(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """Mamba (Gu and Dao 2023): every channel has its own time step and decays. x, result: float32 (tokens, width)."""
    keys, threads = forward.keys, forward.threads
    size, rank = int(keys.need("ssm.state_size")), int(keys.need("ssm.time_step_rank"))
    inputs, gate = split(forward.project(layer, "ssm_in", x), int(keys.need("ssm.inner_size")))
    inputs = ops.silu(convolved(forward, layer, "ssm_conv1d", inputs), threads=threads)
    parts = split(forward.project(layer, "ssm_x", inputs), rank, rank + size)
    if keys.get("ssm.dt_b_c_rms"):
        eps = float(keys.get("ssm.dt_b_c_rms_epsilon"))
        parts = [ops.rms_norm(part, None, eps, threads) for part in parts]
    dt, b, c = (forward.norm(layer, f"ssm_{name}_norm", p) for name, p in zip(("dt", "b", "c"), parts, strict=True))
    dt = ops.softplus(forward.project(layer, "ssm_dt", dt))
    a, b, c = filled(layer.need_array("ssm_a").T), np.ascontiguousarray(b), np.ascontiguousarray(c)
    wide = filled(inputs), filled(dt), b, c
    y = scanned(forward, layer, partial(scan_channels, a), wide, a.shape, a.shape[1] // LANES)[:, : inputs.shape[1]]
    y += inputs * layer.need_array("ssm_d").reshape(-1)
    return forward.project(layer, "ssm_out", ops.gated("silu", gate, y, 0, threads))


def mamba2(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """Mamba-2 (Dao and Gu 2024): one time step and one decay for each head of channels."""
    keys = forward.keys
    inner, size = int(keys.need("ssm.inner_size")), int(keys.need("ssm.state_size"))
    heads, groups = int(keys.need("ssm.time_step_rank")), int(keys.get("ssm.group_count"))
    gate, inputs, dt = split(forward.project(layer, "ssm_in", x), inner, 2 * inner + 2 * groups * size)
    inputs = ops.silu(convolved(forward, layer, "ssm_conv1d", inputs), threads=forward.threads)
    parts = zip(split(inputs, inner, inner + groups * size), (heads, groups, groups), strict=True)
    values, b, c = (part.reshape(len(x), count, -1) for part, count in parts)
    bias = layer.array("ssm_dt.bias")
    dt = ops.softplus(dt if bias is None else dt + bias)
    dt = np.clip(dt, np.float32(keys.get("ssm.time_step_min")), np.float32(keys.get("ssm.time_step_max")))
    y = _scanned_heads(forward, layer, values, dt, b, c)
    return forward.project(layer, "ssm_out", _gated_norm(forward, layer, y.reshape(len(x), inner), gate))


def mamba_of_heads(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """PLaMo 2's: a time step and a decay for each head, made of normed narrow inputs as Mamba's; a head's gate and
    inputs are neighbours.
    """
    keys, threads = forward.keys, forward.threads
    inner, size, heads = (int(keys.need(f"ssm.{key}")) for key in ("inner_size", "state_size", "time_step_rank"))
    both = forward.project(layer, "ssm_in", x).reshape(len(x), heads, 2, -1)
    gate, inputs = (np.ascontiguousarray(both[:, :, part]).reshape(len(x), inner) for part in (0, 1))
    inputs = ops.silu(convolved(forward, layer, "ssm_conv1d", inputs), threads=threads)
    parts = zip(("b", "c", "dt"), split(forward.project(layer, "ssm_x", inputs), size, 2 * size), strict=True)
    b, c, dt = (forward.norm(layer, f"ssm_{name}_norm", part) for name, part in parts)
    dt = ops.softplus(forward.project(layer, "ssm_dt", dt))
    y = _scanned_heads(forward, layer, inputs.reshape(len(x), heads, -1), dt, b[:, None], c[:, None])
    return forward.project(layer, "ssm_out", ops.gated("silu", gate, y.reshape(len(x), inner), 0, threads))


def _scanned_heads(forward: Pass, layer: Layer, values: Floats, dt: Floats, b: Floats, c: Floats) -> Floats:
    """What the heads' states give, (tokens, heads, width), as Mamba-2 has it."""
    a, wide = layer.need_array("ssm_a").reshape(-1), filled(values)
    shape = len(a), b.shape[2], wide.shape[2]
    y = scanned(forward, layer, partial(scan_heads, a), (wide, dt, b, c), shape, len(a))[:, :, : values.shape[2]]
    y += values * layer.need_array("ssm_d").reshape(-1, 1)
    return y


def _gated_norm(forward: Pass, layer: Layer, y: Floats, gate: Floats) -> Floats:
    """silu(gate) * y under an RMS norm over each group; some models norm before they gate, some don't norm."""
    weight, threads = layer.array("ssm_norm.weight"), forward.threads
    if weight is None:
        return ops.gated("silu", gate, y, 0, threads)

    def norm(values: Floats) -> Floats:
        each = ops.rms_norm(values.reshape(len(y), -1, weight.shape[-1]), None, forward.hyper.eps, threads)
        return np.multiply(each, weight, out=each).reshape(y.shape)

    if forward.keys.get("ssm.norm_before_gate"):
        return ops.gated("silu", gate, norm(y), 0, threads)
    return norm(ops.gated("silu", gate, y, 0, threads))


def short_convolution(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """LFM2's mixer: a gated convolution over the last few tokens, gated again, with its projections."""
    width = x.shape[1]
    before, after, values = split(forward.project(layer, "shortconv.in_proj", x), width, 2 * width)
    mixed = convolved(forward, layer, "shortconv.conv", np.multiply(before, values, out=values))
    return forward.project(layer, "shortconv.out_proj", np.multiply(after, mixed, out=mixed))
