"""Operations on several streams, residuals and states of stacks on a device (see `runtime.graph.stream_operations`)."""

import math

import torch

from archs.families.hrm import is_low

from ..graph import operations as op
from ..graph import stream_operations as streams
from ..graph.extended_text import FIRST_STATE
from ..layer import Layer
from .activations import ACTIVATIONS
from .context import DeviceContext, rms_norm
from .table import Values, computes

MIN_SQUARE = 1e-5  # of a copy that is scaled
MIN_GATE = 1e-6  # before a root is taken


@computes(streams.Repeat)
def _repeat(context: DeviceContext, o: streams.Repeat, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x.repeat(1, o.times)


@computes(streams.StreamMean)
def _stream_mean(context: DeviceContext, o: streams.StreamMean, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x.reshape(len(x), -1, o.width).mean(dim=1)


@computes(streams.KeepStreams)
def _keep_streams(context: DeviceContext, o: streams.KeepStreams, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    context.forward.streams = context.host(x)
    return x


@computes(streams.StreamFactors)
def _stream_factors(context: DeviceContext, o: streams.StreamFactors, read: Values) -> torch.Tensor:
    scale, base = _scale_and_base(context, o.layer, o.role)
    part = slice(o.number * o.count, (o.number + 1) * o.count)
    factors: torch.Tensor = read(o.x)[:, part] * scale[o.number] + base[part]
    return factors


def _scale_and_base(context: DeviceContext, layer: Layer, role: str) -> tuple[torch.Tensor, torch.Tensor]:
    scale, base = (context.weights.need_array(layer, f"{role}_{name}.weight") for name in ("scale", "base"))
    return scale.reshape(-1), base.reshape(-1)


@computes(streams.BalanceStreams)
def _balance_streams(context: DeviceContext, o: streams.BalanceStreams, read: Values) -> torch.Tensor:
    scale, base = _scale_and_base(context, o.layer, o.role)
    logits = read(o.x)[:, 2 * o.count :] * scale[2] + base[2 * o.count :]
    shares = torch.softmax(logits.reshape(-1, o.count, o.count), dim=-1) + o.eps
    shares = shares / (shares.sum(dim=1, keepdim=True) + o.eps)
    for _ in range(o.rounds - 1):
        shares = shares / (shares.sum(dim=2, keepdim=True) + o.eps)
        shares = shares / (shares.sum(dim=1, keepdim=True) + o.eps)
    return shares


@computes(streams.SumStreams)
def _sum_streams(context: DeviceContext, o: streams.SumStreams, read: Values) -> torch.Tensor:
    factors: torch.Tensor = read(o.factors)
    return (factors[:, :, None] * read(o.x).reshape(*factors.shape, -1)).sum(dim=1)


@computes(streams.MixStreams)
def _mix_streams(context: DeviceContext, o: streams.MixStreams, read: Values) -> torch.Tensor:
    x, between = read(o.x), read(o.between)
    between = between if o.to_first else between.transpose(1, 2)
    mixed: torch.Tensor = between @ x.reshape(len(x), between.shape[1], -1)
    return mixed.reshape(x.shape)


@computes(streams.AddToStreams)
def _add_to_streams(context: DeviceContext, o: streams.AddToStreams, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x + (read(o.factors)[:, :, None] * read(o.part)[:, None]).reshape(x.shape)


@computes(streams.Stack)
def _stack(context: DeviceContext, o: streams.Stack, read: Values) -> torch.Tensor:
    return torch.cat([read(part) for part in o.parts], dim=1)


@computes(streams.AsLong)
def _as_long(context: DeviceContext, o: streams.AsLong, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    wanted, own = (each.square().mean(dim=1, keepdim=True) for each in (read(o.other), x))
    return x * wanted.sqrt() / own.clamp(min=MIN_SQUARE).sqrt()


@computes(streams.AddToOthers)
def _add_to_others(context: DeviceContext, o: streams.AddToOthers, read: Values) -> torch.Tensor:
    x, part = read(o.x), read(o.part)
    each = x.reshape(len(x), -1, part.shape[1])
    return torch.cat((each[:, :1], each[:, 1:] + part[:, None]), dim=1).reshape(x.shape)


@computes(op.BeginHrmCycles)
def _begin_cycles(context: DeviceContext, o: op.BeginHrmCycles, read: Values) -> torch.Tensor:
    x, beginning = read(o.x), context.weights.need_array(context.forward.global_tensors, FIRST_STATE)
    return torch.cat((x + beginning.reshape(-1), x), dim=1)


@computes(op.ReadState)
def _read_state(context: DeviceContext, o: op.ReadState, read: Values) -> torch.Tensor:
    state: torch.Tensor = read(o.x)[:, : o.size]
    return state


@computes(op.NextState)
def _next_state(context: DeviceContext, o: op.NextState, read: Values) -> torch.Tensor:
    forward = context.forward
    assert o.given is not None
    out, resting = read(o.given), read(o.x)[:, context.hparams.width :]
    stack, low_passes = (int(context.keys.need(key)) for key in ("hrm.layers_per_stack", "hrm.l_cycles"))
    if o.layer.index + 1 == len(forward.network.layers):
        return out
    if (o.layer.index + 1) % stack == 0:
        state = context.norm(forward.global_tensors, "output_norm", out)
        number, out = o.layer.index // stack, state + resting
        resting = state if is_low(number, low_passes) != is_low(number + 1, low_passes) else resting
    return torch.cat((out, resting), dim=1)


@computes(op.ReadResiduals)
def _read_residuals(context: DeviceContext, o: op.ReadResiduals, read: Values) -> torch.Tensor:
    x, width = read(o.x), context.hparams.width
    if x.shape[1] == width:
        return x
    each = x.reshape(len(x), -1, width)
    scores = rms_norm(each, None, context.hparams.eps) @ context.weights.need_array(o.layer, f"{o.role}.weight")
    mean: torch.Tensor = (torch.softmax(scores, dim=-1)[:, None] @ each)[:, 0]
    return mean


@computes(op.LeaveResidual)
def _leave_residual(context: DeviceContext, o: op.LeaveResidual, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    if o.layer.index % int(context.keys.need("attn_res.block_size")):
        return x
    return torch.cat((x.new_zeros((len(x), context.hparams.width)), x), dim=1)


@computes(op.AddHidden)
def _add_hidden(context: DeviceContext, o: op.AddHidden, read: Values) -> torch.Tensor:
    assert o.given is not None
    x, width = read(o.x), context.hparams.width
    return torch.cat((x[:, :width] + read(o.given), x[:, width:]), dim=1)


@computes(op.AddNgrams)
def _add_ngrams(context: DeviceContext, o: op.AddNgrams, read: Values) -> torch.Tensor:
    x, forward, layer, width = read(o.x), context.forward, o.layer, context.hparams.width
    assert forward.layer_inputs is not None
    inputs = context.tensor(forward.layer_inputs[:, 0])
    keys = _stream_norm(context, layer, "ple_norm_key.weight", context.project(layer, "ple_key", inputs))
    queries = _stream_norm(context, layer, "ple_norm_query.weight", x)
    scores = (keys * queries).reshape(len(x), -1, width).sum(dim=2) / math.sqrt(width)
    gates = torch.sigmoid(scores.abs().clamp(min=MIN_GATE).sqrt() * scores.sign())
    values = context.project(layer, "ple_value", inputs)
    gated = (gates[:, :, None] * values[:, None]).reshape(x.shape)
    normed = _stream_norm(context, layer, "ple_norm_conv.weight", gated)
    added: torch.Tensor = x + gated + ACTIVATIONS["silu"](_apart_convolved(context, layer, normed))
    return added


def _stream_norm(context: DeviceContext, layer: Layer, name: str, x: torch.Tensor) -> torch.Tensor:
    each = rms_norm(x.reshape(len(x), -1, context.hparams.width), None, context.hparams.eps)
    return each.reshape(x.shape) * context.weights.need_array(layer, name)


def _apart_convolved(context: DeviceContext, layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Return each channel's convolution; its taps are as far apart as the n-grams are long."""
    from ..ngrams import _keep, _kept

    forward, taps = context.forward, context.weights.need_array(layer, "ple_conv1d.weight")
    apart = int(context.keys.need("ple.ngram_size"))
    back = (taps.shape[1] - 1) * apart
    body, kept = x.reshape(context.texts, context.length, -1), _kept(forward)
    before = context.tensor(kept[1]) if len(kept) > 1 else body.new_zeros((context.texts, back, x.shape[1]))
    known = torch.cat((before, body), dim=1)
    if forward.cache is not None:
        _keep(forward, 0, 1, context.host(known), back, kept)
    rows = (known[:, tap * apart : tap * apart + context.length] * taps[:, tap] for tap in range(taps.shape[1]))
    return torch.stack(tuple(rows)).sum(dim=0).reshape(x.shape)
