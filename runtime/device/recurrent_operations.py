"""Operations of layers with states on a device (see `runtime.graph.recurrent_operations`).

Recurrences go token by token over all texts and heads at once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..graph import recurrent_operations as op
from ..layer import Layer
from .context import DeviceContext, layer_norm, rms_norm
from .table import Values, computes

Step = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # (state, one token of each input) → state, output


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
    context: DeviceContext, layer: Layer, step: Step, inputs: tuple[torch.Tensor, ...], shape: tuple[int, ...]
) -> torch.Tensor:
    """Return step(state, *inputs of a token) for all tokens: like the first input, (tokens, …). shape: of a state."""
    kept = context.states(layer)
    state = kept[1] if len(kept) > 1 else inputs[0].new_zeros((context.texts, *shape))
    each = [x.reshape(context.texts, context.length, *x.shape[1:]) for x in inputs]
    memory = 0 if context.cache is None else context.cache.memory
    out, latest = [], deque[torch.Tensor](maxlen=memory + 1)
    for token in range(context.length):
        state, y = step(state, *(x[:, token] for x in each))
        out.append(y)
        latest.append(state)
    if kept:
        context.keep(layer, 0, kept[0], state, *kept[2:])
        context.remember(layer, 1, lambda token: latest[token - context.length])
    return torch.stack(out, dim=1).reshape(inputs[0].shape)


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
    a = context.weights.need_array(o.layer, "ssm_a").T

    def step(h: Any, x: Any, dt: Any, b: Any, c: Any) -> tuple[torch.Tensor, torch.Tensor]:
        h = h * torch.exp(dt[:, None] * a) + (dt * x)[:, None] * b[:, :, None]
        return h, (h * c[:, :, None]).sum(dim=1)

    return scanned(context, o.layer, step, (read(o.x), read(o.dt), read(o.b), read(o.c)), tuple(a.shape))


@computes(op.HeadScan)
def _head_scan(context: DeviceContext, o: op.HeadScan, read: Values) -> torch.Tensor:
    a = context.weights.need_array(o.layer, "ssm_a").reshape(-1)
    return _scan_heads(context, o.layer, a, read(o.x), read(o.dt), read(o.b), read(o.c))


@computes(op.LightningScan)
def _lightning_scan(context: DeviceContext, o: op.LightningScan, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    rates = -torch.tensor(o.rates, dtype=torch.float32, device=context.device)
    if context.cache is not None:  # counts the tokens
        nothing = x.new_zeros((context.texts, 0))
        context.keep(o.layer, context.length, nothing, *context.states(o.layer)[1:])
        context.remember(o.layer, 0, lambda token: nothing)
    return _scan_heads(context, o.layer, rates, x, x.new_ones(x.shape[:2]), read(o.k), read(o.q))


def _scan_heads(
    context: DeviceContext, layer: Layer, a: Any, x: Any, dt: Any, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """Return h = exp(a dt) h + dt x b, y = c h of each head. b, c (tokens, groups, size)."""
    heads = x.shape[1]
    b, c = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (b, c))

    def step(h: Any, x: Any, dt: Any, b: Any, c: Any) -> tuple[torch.Tensor, torch.Tensor]:
        h = h * torch.exp(dt * a)[:, :, None, None] + b[..., None] * (x * dt[..., None])[:, :, None]
        return h, (h * c[..., None]).sum(dim=2)

    return scanned(context, layer, step, (x, dt, b, c), (heads, b.shape[2], x.shape[2]))


def _by_head(context: DeviceContext, layer: Layer, step: Step, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Return `scanned` with a matrix for each head of the values x, as wide as the first of the others."""
    return scanned(context, layer, step, (x, *others), (x.shape[1], others[0].shape[2], x.shape[2]))


@computes(op.DeltaRule)
def _delta_rule(context: DeviceContext, o: op.DeltaRule, read: Values) -> torch.Tensor:
    by_channel = o.decay.shape != o.beta.shape

    def step(h: Any, v: Any, q: Any, k: Any, decay: Any, beta: Any) -> tuple[torch.Tensor, torch.Tensor]:
        h = h * (decay[..., None] if by_channel else decay[..., None, None])
        error = (v - (h * k[..., None]).sum(dim=2)) * beta[..., None]
        h = h + k[..., None] * error[:, :, None]
        return h, (h * q[..., None]).sum(dim=2)

    return _by_head(context, o.layer, step, *(read(each) for each in (o.x, o.q, o.k, o.decay, o.beta)))


@computes(op.Wkv)
def _wkv(context: DeviceContext, o: op.Wkv, read: Values) -> torch.Tensor:
    def step(h: Any, v: Any, r: Any, k: Any, w: Any) -> tuple[torch.Tensor, torch.Tensor]:
        y = (h * r[..., None]).sum(dim=2)
        return h * w[..., None] + k[..., None] * v[:, :, None], y

    return _by_head(context, o.layer, step, *(read(each) for each in (o.x, o.r, o.k, o.w)))


@computes(op.Wkv7)
def _wkv7(context: DeviceContext, o: op.Wkv7, read: Values) -> torch.Tensor:
    def step(h: Any, v: Any, r: Any, k: Any, w: Any, a: Any, b: Any) -> tuple[torch.Tensor, torch.Tensor]:
        answer = (h * a[..., None]).sum(dim=2)
        h = h * w[..., None] + k[..., None] * v[:, :, None] + b[..., None] * answer[:, :, None]
        return h, (h * r[..., None]).sum(dim=2)

    return _by_head(context, o.layer, step, *(read(each) for each in (o.x, o.r, o.k, o.w, o.a, o.b)))


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
