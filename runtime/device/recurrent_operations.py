"""Operations of layers with states on a device (see `runtime.graph.recurrent_operations`)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..graph import recurrent_operations as op
from ..layer import Layer
from . import recurrences
from .context import DeviceContext, layer_norm, rms_norm
from .table import Values, computes

Scan = Callable[..., recurrences.Result]  # of inputs (texts, tokens, …) and states


def tailed(context: DeviceContext, layer: Layer, x: torch.Tensor, count: int, number: int = 0) -> torch.Tensor:
    """Return x (tokens, channels) of each text after the `count` rows before it: (texts, count + length, channels).

    The cache keeps the last rows as the layer's state `number`, of which the first one counts the tokens.
    """
    kept, body = list(context.states(layer)), x.reshape(context.texts, context.length, -1)
    tail = kept[number] if number < len(kept) else body.new_zeros((context.texts, count, body.shape[2]))
    known = torch.cat((tail, body), dim=1)
    kept[number : number + 1] = [known[:, context.length :].clone()]  # not the memory of all rows
    context.keep(layer, 0 if number else context.length, *kept)
    context.remember(layer, number, lambda token: known[:, token + 1 : token + 1 + count].clone())
    return known


def scanned(
    context: DeviceContext, layer: Layer, scan: Scan, inputs: tuple[torch.Tensor, ...], shape: tuple[int, ...]
) -> torch.Tensor:
    """Return scan(*inputs, state) of all texts: like the first input, (tokens, …). shape: of a text's state."""
    kept = context.states(layer)
    state = kept[1] if len(kept) > 1 else inputs[0].new_zeros((context.texts, *shape))
    each = [x.reshape(context.texts, context.length, *x.shape[1:]) for x in inputs]
    alone = 0 if context.cache is None else min(context.length, context.cache.memory)  # tokens to be remembered
    made, states, begin = [], [], 0
    for end in sorted({context.length - alone, *range(context.length - alone + 1, context.length + 1)} - {0}):
        y, state = scan(*(x[:, begin:end] for x in each), state)
        state = state.clone()  # not the memory of all tokens' states
        made.append(y)
        states.append(state)
        begin = end
    if kept:
        context.keep(layer, 0, kept[0], state, *kept[2:])
        context.remember(layer, 1, lambda token: states[token - context.length])
    return torch.cat(made, dim=1).reshape(inputs[0].shape)


@computes(op.Convolution)
def _convolution(context: DeviceContext, o: op.Convolution, read: Values) -> torch.Tensor:
    parts = [context.weights.need_array(o.layer, f"{role}.weight") for role in o.taps]
    taps = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    count, x = taps.shape[1], read(o.x)
    known = tailed(context, o.layer, x.reshape(len(x), -1), count - 1)
    if not context.block.causal:  # half of the zeros stand after the text
        known = torch.roll(known, -(count // 2), dims=1)
    bias = context.weights.array(o.layer, f"{o.taps[0]}.bias")
    y = sum(known[:, i : i + context.length] * taps[:, i] for i in range(count))
    y = y if bias is None else y + bias
    return torch.as_tensor(y).reshape(x.shape)


@computes(op.TokenShift)
def _token_shift(context: DeviceContext, o: op.TokenShift, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return tailed(context, o.layer, x, 1, o.state)[:, :-1].reshape(x.shape) - x


@computes(op.ChannelScan)
def _channel_scan(context: DeviceContext, o: op.ChannelScan, read: Values) -> torch.Tensor:
    a = context.weights.need_array(o.layer, "ssm_a").T.contiguous()

    def scan(x: Any, dt: Any, b: Any, c: Any, state: Any) -> recurrences.Result:
        return recurrences.scan_channels(x, dt, b, c, a, state)

    return scanned(context, o.layer, scan, (read(o.x), read(o.dt), read(o.b), read(o.c)), tuple(a.shape))


@computes(op.HeadScan)
def _head_scan(context: DeviceContext, o: op.HeadScan, read: Values) -> torch.Tensor:
    rates, dt = context.weights.need_array(o.layer, "ssm_a").reshape(-1), read(o.dt)
    return _scan_heads(context, o.layer, read(o.x) * dt[..., None], dt * rates, read(o.b), read(o.c))


@computes(op.LightningScan)
def _lightning_scan(context: DeviceContext, o: op.LightningScan, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    logs = context.once(("lightning", o.layer.index), lambda: -context.tensor(np.array(o.rates, np.float32)))
    if context.cache is not None:  # counts the tokens
        nothing = x.new_zeros((context.texts, 0))
        context.keep(o.layer, context.length, nothing, *context.states(o.layer)[1:])
        context.remember(o.layer, 0, lambda token: nothing)
    return _scan_heads(context, o.layer, x, logs.expand(x.shape[:2]), read(o.k), read(o.q))


def _scan_heads(
    context: DeviceContext, layer: Layer, x: torch.Tensor, logs: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """Return `recurrences.scan_heads` of heads that share b and c (tokens, groups, size) in groups."""
    heads = x.shape[1]
    b, c = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (b, c))
    return scanned(context, layer, recurrences.scan_heads, (x, logs, b, c), (heads, b.shape[2], x.shape[2]))


def _by_head(context: DeviceContext, layer: Layer, scan: Scan, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Return `scanned` with a matrix for each head of the values x, as wide as the first of the others."""
    return scanned(context, layer, scan, (x, *others), (x.shape[1], others[0].shape[2], x.shape[2]))


@computes(op.DeltaRule)
def _delta_rule(context: DeviceContext, o: op.DeltaRule, read: Values) -> torch.Tensor:
    x, q, k, decay, beta = (read(each) for each in (o.x, o.q, o.k, o.decay, o.beta))
    decay = decay.reshape(*beta.shape, -1)
    return _by_head(context, o.layer, recurrences.delta_rule, x, q, k, decay, beta)


@computes(op.Wkv)
def _wkv(context: DeviceContext, o: op.Wkv, read: Values) -> torch.Tensor:
    return _by_head(context, o.layer, recurrences.wkv, *(read(each) for each in (o.x, o.r, o.k, o.w)))


@computes(op.Wkv7)
def _wkv7(context: DeviceContext, o: op.Wkv7, read: Values) -> torch.Tensor:
    return _by_head(context, o.layer, recurrences.wkv7, *(read(each) for each in (o.x, o.r, o.w, o.k, o.a, o.b)))


@computes(op.CurrentTokenBonus)
def _current_token_bonus(context: DeviceContext, o: op.CurrentTokenBonus, read: Values) -> torch.Tensor:
    scores = read(o.r) * read(o.k)
    if o.role:
        scores = scores * context.weights.need_array(o.layer, f"{o.role}.weight").reshape(-1, o.k.shape[-1])
    own: torch.Tensor = scores.sum(dim=2, keepdim=True) * read(o.x)
    return own


@computes(op.Lerp)
def _lerp(context: DeviceContext, o: op.Lerp, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    share = context.weights.need_array(o.layer, f"{o.role}.weight").reshape(-1, x.shape[1])[o.row]
    return x + read(o.difference) * (share if o.added is None else share + read(o.added))


@computes(op.KeepValues)
def _keep_values(context: DeviceContext, o: op.KeepValues, read: Values) -> torch.Tensor:
    context.forward.first_values = read(o.x)
    return read(o.x)


@computes(op.MixValues)
def _mix_values(context: DeviceContext, o: op.MixValues, read: Values) -> torch.Tensor:
    x, first = read(o.x), context.forward.first_values
    return x if first is None else x + (first - x) * read(o.gate)


@computes(op.L2Norm)
def _l2_norm(context: DeviceContext, o: op.L2Norm, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    squares = x.square().sum(dim=-1, keepdim=True)
    return x / (squares.sqrt().clamp(min=o.eps) if o.eps_is_minimum else (squares + o.eps).sqrt())


@computes(op.GroupNorm)
def _group_norm(context: DeviceContext, o: op.GroupNorm, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    groups = x.reshape(len(x), -1, o.width)
    normed = layer_norm(groups, None, None, o.eps) if o.centered else rms_norm(groups, None, o.eps)
    normed = normed * context.weights.need_array(o.layer, f"{o.role}.weight").reshape(-1, o.width)
    bias = context.weights.array(o.layer, f"{o.role}.bias")
    normed = normed if bias is None else normed + bias.reshape(-1, o.width)
    return normed.reshape(x.shape)


@computes(op.RepeatHeads)
def _repeat_heads(context: DeviceContext, o: op.RepeatHeads, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    times = o.heads // x.shape[1]
    return x.repeat(1, times, 1) if o.in_turns else x.repeat_interleave(times, dim=1)
