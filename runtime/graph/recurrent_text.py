"""The executor for texts: operations of layers with states (see `recurrent_operations`)."""

from functools import partial

import numpy as np

from quants.kernels.lanes import LANES

from .. import ops
from ..arrays import Floats
from ..kernels.scan import delta_channels, delta_heads, scan_channels, scan_heads, wkv7_heads, wkv_heads
from ..layer import ForwardContext
from ..mixers.recurrence import convolved_by, counted, filled, rows_before, scan_values, scanned
from . import recurrent_operations as op
from .read import Read, computes


@computes(op.Convolution)
def _convolution(forward: ForwardContext, o: op.Convolution, read: Read) -> Floats:
    taps = [o.layer.need_array(f"{role}.weight") for role in o.taps]
    each = np.concatenate([own.reshape(-1, own.shape[-1]) for own in taps]) if len(taps) > 1 else taps[0]
    return convolved_by(forward, o.layer, each, o.layer.array(f"{o.taps[0]}.bias"), read(o.x))


@computes(op.TokenShift)
def _token_shift(forward: ForwardContext, o: op.TokenShift, read: Read) -> Floats:
    x: Floats = read(o.x)
    before = rows_before(forward, o.layer, x, o.state)
    return np.subtract(before, x, out=before)


@computes(op.ChannelScan)
def _channel_scan(forward: ForwardContext, o: op.ChannelScan, read: Read) -> Floats:
    x, a = read(o.x), filled(o.layer.need_array("ssm_a").T)
    wide = filled(x), filled(read(o.dt)), read(o.b), read(o.c)
    y = scanned(forward, o.layer, partial(scan_channels, a), wide, a.shape, a.shape[1] // LANES)
    return np.ascontiguousarray(y[:, : x.shape[1]])


@computes(op.HeadScan)
def _head_scan(forward: ForwardContext, o: op.HeadScan, read: Read) -> Floats:
    kernel = partial(scan_heads, o.layer.need_array("ssm_a").reshape(-1))
    return scan_values(forward, o.layer, kernel, o.b.shape[-1], read(o.x), read(o.dt), read(o.b), read(o.c))


@computes(op.LightningScan)
def _lightning_scan(forward: ForwardContext, o: op.LightningScan, read: Read) -> Floats:
    x: Floats = read(o.x)
    counted(forward, o.layer)
    kernel, steps = partial(scan_heads, -np.array(o.rates, np.float32)), np.ones(x.shape[:2], np.float32)
    return scan_values(forward, o.layer, kernel, o.k.shape[-1], x, steps, read(o.k), read(o.q))


@computes(op.DeltaRule)
def _delta_rule(forward: ForwardContext, o: op.DeltaRule, read: Read) -> Floats:
    kernel = delta_heads if o.decay.shape == o.beta.shape else delta_channels
    inputs = map(read, (o.x, o.q, o.k, o.decay, o.beta))
    return scan_values(forward, o.layer, kernel, o.k.shape[-1], *inputs)


@computes(op.Wkv)
def _wkv(forward: ForwardContext, o: op.Wkv, read: Read) -> Floats:
    return scan_values(forward, o.layer, wkv_heads, o.k.shape[-1], *map(read, (o.x, o.r, o.k, o.w)))


@computes(op.Wkv7)
def _wkv7(forward: ForwardContext, o: op.Wkv7, read: Read) -> Floats:
    return scan_values(forward, o.layer, wkv7_heads, o.k.shape[-1], *map(read, (o.x, o.r, o.k, o.w, o.a, o.b)))


@computes(op.CurrentTokenBonus)
def _current_token_bonus(forward: ForwardContext, o: op.CurrentTokenBonus, read: Read) -> Floats:
    scores: Floats = read(o.r) * read(o.k)
    if o.role:
        scores *= o.layer.need_array(f"{o.role}.weight").reshape(-1, o.k.shape[-1])
    own: Floats = np.sum(scores, axis=2, keepdims=True, dtype=np.float32) * read(o.x)
    return own


@computes(op.Lerp)
def _lerp(forward: ForwardContext, o: op.Lerp, read: Read) -> Floats:
    x: Floats = read(o.x)
    share = o.layer.need_array(f"{o.role}.weight").reshape(-1, x.shape[1])[o.row]
    share = share if o.added is None else share + read(o.added)
    mixed: Floats = read(o.difference) * share
    return np.add(x, mixed, out=mixed)


@computes(op.KeepValues)
def _keep_values(forward: ForwardContext, o: op.KeepValues, read: Read) -> Floats:
    x: Floats = read(o.x)
    forward.first_values = x.copy()
    return x


@computes(op.MixValues)
def _mix_values(forward: ForwardContext, o: op.MixValues, read: Read) -> Floats:
    x: Floats = read(o.x)
    return x if forward.first_values is None else x + (forward.first_values - x) * read(o.gate)


@computes(op.L2Norm)
def _l2_norm(forward: ForwardContext, o: op.L2Norm, read: Read) -> Floats:
    x, eps = read(o.x), np.float32(o.eps)
    if o.eps_is_minimum:
        unit: Floats = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), eps)
    else:
        unit = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True, dtype=np.float32) + eps)
    return unit


@computes(op.GroupNorm)
def _group_norm(forward: ForwardContext, o: op.GroupNorm, read: Read) -> Floats:
    x: Floats = read(o.x)
    weight, bias = o.layer.need_array(f"{o.role}.weight"), o.layer.array(f"{o.role}.bias")
    groups = x.reshape(len(x), -1, o.width)
    norm = partial(ops.layer_norm, bias=None) if o.centered else ops.rms_norm
    normed = norm(groups, weight=None, eps=o.eps, threads=forward.threads)
    normed *= weight.reshape(-1, o.width)
    if bias is not None:
        normed += bias.reshape(-1, o.width)
    return normed.reshape(x.shape)


@computes(op.RepeatHeads)
def _repeat_heads(forward: ForwardContext, o: op.RepeatHeads, read: Read) -> Floats:
    x: Floats = read(o.x)
    times = o.heads // x.shape[1]
    return np.tile(x, (1, times, 1)) if o.in_turns else np.repeat(x, times, axis=1)
