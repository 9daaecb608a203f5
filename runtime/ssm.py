"""State-space layers (Mamba, Mamba-2) and short convolutions: what they know of earlier tokens is of fixed size.

Reference: transformers `models/mamba/modeling_mamba.py`, `models/mamba2/`, `models/lfm2/`. The cache keeps the last
inputs of the convolution and the recurrence's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.hyper import Keys

from . import ops
from .kernels.scan import scan_channels, scan_heads
from .kernels.threads import run as share_out
from .kernels.threads import shares

if TYPE_CHECKING:
    from .graph import Layer, Pass

Floats = NDArray[np.float32]

WORTH_A_THREAD = 1 << 16  # updates of a state


def state_space(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """The state-space part of a layer, with its projections: float32 (tokens, width)."""
    return mamba(run, index, layer, x) if "ssm_x.weight" in layer else mamba2(run, index, layer, x)


def mamba(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """Mamba (Gu and Dao 2023): every channel has its own time step and decays."""
    keys = _keys(run)
    size, rank = int(keys.need("ssm.state_size")), int(keys.need("ssm.time_step_rank"))
    inputs, gate = parts(run.project(layer, "ssm_in", x), [int(keys.need("ssm.inner_size"))])
    tail, state = states(run, index)
    inputs, tail = convolved(run, layer, "ssm_conv1d", inputs, tail)
    ops.silu(inputs)
    found = parts(run.project(layer, "ssm_x", inputs), [rank, rank + size])
    if keys.get("ssm.dt_b_c_rms"):
        eps = float(keys.get("ssm.dt_b_c_rms_epsilon", run.model.hyper.eps))
        found = [ops.rms_norm(part, None, eps) for part in found]
    dt, b, c = (run.norm(layer, f"ssm_{name}_norm", p) for name, p in zip(("dt", "b", "c"), found, strict=True))
    dt = ops.softplus(run.project(layer, "ssm_dt", dt))
    a = np.ascontiguousarray(layer.need("ssm_a").float32().T)
    if state is None:
        state = np.zeros((run.texts, *a.shape), np.float32)
    y = np.empty_like(inputs)
    for text, rows in enumerate(texts(run)):
        now = state[text]

        def scan(start: int, stop: int, rows: slice = rows, now: Floats = now) -> None:
            scan_channels(inputs[rows], dt[rows], a, b[rows], c[rows], now, y[rows], start, stop)

        share_out(scan, shares(a.shape[1], WORTH_A_THREAD // (run.length * size) + 1))
    keep(run, index, tail, state)
    y += inputs * layer.need("ssm_d").float32().reshape(-1)
    return run.project(layer, "ssm_out", ops.silu_gated(gate, y))


def mamba2(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """Mamba-2 (Dao and Gu 2024): one time step and one decay for each head of channels."""
    keys = _keys(run)
    inner, size = int(keys.need("ssm.inner_size")), int(keys.need("ssm.state_size"))
    heads, groups = int(keys.need("ssm.time_step_rank")), int(keys.get("ssm.group_count", 1))
    gate, inputs, dt = parts(run.project(layer, "ssm_in", x), [inner, 2 * inner + 2 * groups * size])
    tail, state = states(run, index)
    inputs, tail = convolved(run, layer, "ssm_conv1d", inputs, tail)
    values, b, c = parts(ops.silu(inputs), [inner, inner + groups * size])
    values, b, c = values.reshape(len(x), heads, -1), b.reshape(len(x), groups, -1), c.reshape(len(x), groups, -1)
    bias = layer.array("ssm_dt.bias")
    dt = ops.softplus(dt if bias is None else dt + bias)
    dt = np.clip(dt, np.float32(keys.get("ssm.time_step_min", 0)), np.float32(keys.get("ssm.time_step_max", np.inf)))
    a = layer.need("ssm_a").float32().reshape(-1)
    if state is None:
        state = np.zeros((run.texts, heads, size, values.shape[2]), np.float32)
    y = np.empty_like(values)
    for text, rows in enumerate(texts(run)):
        now = state[text]

        def scan(start: int, stop: int, rows: slice = rows, now: Floats = now) -> None:
            scan_heads(values[rows], dt[rows], a, b[rows], c[rows], now, y[rows], start, stop)

        share_out(scan, shares(heads, WORTH_A_THREAD // (run.length * size * values.shape[2]) + 1))
    keep(run, index, tail, state)
    y += values * layer.need("ssm_d").float32().reshape(-1, 1)
    return run.project(layer, "ssm_out", _gated_norm(run, layer, keys, y.reshape(len(x), inner), gate))


def _gated_norm(run: Pass, layer: Layer, keys: Keys, y: Floats, gate: Floats) -> Floats:
    """silu(gate) * y under an RMS norm over each group; some models norm before they gate, some don't norm."""
    weight = layer.array("ssm_norm.weight")
    if weight is None:
        return ops.silu_gated(gate, y)

    def norm(values: Floats) -> Floats:
        each = ops.rms_norm(values.reshape(len(y), -1, weight.shape[-1]), None, run.model.hyper.eps)
        return np.multiply(each, weight, out=each).reshape(y.shape)

    return ops.silu_gated(gate, norm(y)) if keys.get("ssm.norm_before_gate") else norm(ops.silu_gated(gate, y))


def short_convolution(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """LFM2's mixer: a gated convolution over the last few tokens, gated again, with its projections."""
    width = x.shape[1]
    before, after, values = parts(run.project(layer, "shortconv.in_proj", x), [width, 2 * width])
    tail, _ = states(run, index)
    mixed, tail = convolved(run, layer, "shortconv.conv", np.multiply(before, values, out=values), tail)
    keep(run, index, tail)
    return run.project(layer, "shortconv.out_proj", np.multiply(after, mixed, out=mixed))


def convolved(run: Pass, layer: Layer, name: str, x: Floats, tail: Floats | None) -> tuple[Floats, Floats]:
    """Each channel's causal convolution over its text, and the inputs that the next tokens will need.

    x (tokens, channels); tail: the last inputs before x, (texts, taps - 1, channels); None: zeros.
    """
    taps = layer.need(f"{name}.weight").float32()
    channels, count = taps.shape
    each = x.reshape(run.texts, run.length, channels)
    if tail is None:
        tail = np.zeros((run.texts, count - 1, channels), np.float32)
    known = np.concatenate((tail, each), axis=1)
    out = np.empty_like(each)
    bias = layer.array(f"{name}.bias")
    out[...] = 0 if bias is None else bias
    for tap in range(count):
        out += known[:, tap : tap + run.length] * taps[:, tap]
    return out.reshape(x.shape), known[:, run.length :].copy()


def _keys(run: Pass) -> Keys:
    return Keys(run.model.architecture.name, run.model.metadata)


def texts(run: Pass) -> list[slice]:
    return [slice(text * run.length, (text + 1) * run.length) for text in range(run.texts)]


def parts(x: Floats, ends: list[int]) -> list[Floats]:
    return [np.ascontiguousarray(part) for part in np.split(x, ends, axis=1)]


def states(run: Pass, index: int) -> tuple[Floats | None, Floats | None]:
    """The convolution's last inputs and the recurrence's state, where earlier tokens left any."""
    kept = run.cache.states(index) if run.cache is not None else ()
    return (kept[0] if kept else None), (kept[1] if len(kept) > 1 else None)


def keep(run: Pass, index: int, *states: Floats) -> None:
    if run.cache is not None:
        run.cache.keep(index, run.length, *states)
