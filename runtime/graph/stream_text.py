"""The executor for texts: operations on several streams or copies (see `stream_operations`)."""

from typing import cast

import numpy as np

from .. import ops
from ..arrays import Floats
from ..layer import ForwardContext
from . import stream_operations as op
from .read import Read, computes

MIN_SQUARE = np.float32(1e-5)  # of a copy that is scaled


@computes(op.Repeat)
def _repeat(forward: ForwardContext, o: op.Repeat, read: Read) -> Floats:
    return np.tile(read(o.x), (1, o.times))


@computes(op.StreamMean)
def _stream_mean(forward: ForwardContext, o: op.StreamMean, read: Read) -> Floats:
    x: Floats = read(o.x)
    return np.asarray(x.reshape(len(x), -1, o.width).mean(axis=1, dtype=np.float32), np.float32)


@computes(op.KeepStreams)
def _keep_streams(forward: ForwardContext, o: op.KeepStreams, read: Read) -> Floats:
    forward.streams = cast(Floats, read(o.x))
    return forward.streams


@computes(op.StreamFactors)
def _stream_factors(forward: ForwardContext, o: op.StreamFactors, read: Read) -> Floats:
    scale, base = (o.layer.need_array(f"{o.role}_{name}.weight") for name in ("scale", "base"))
    part = slice(o.number * o.count, (o.number + 1) * o.count)
    factors: Floats = read(o.x)[:, part] * scale.reshape(-1)[o.number] + base.reshape(-1)[part]
    return factors


@computes(op.BalanceStreams)
def _balance_streams(forward: ForwardContext, o: op.BalanceStreams, read: Read) -> Floats:
    scale, base = (o.layer.need_array(f"{o.role}_{name}.weight") for name in ("scale", "base"))
    start, eps = 2 * o.count, np.float32(o.eps)
    logits = read(o.x)[:, start:] * scale[2] + base[start:]
    weights: Floats = ops.softmax(logits.reshape(-1, o.count)).reshape(-1, o.count, o.count) + eps
    weights /= weights.sum(axis=1, keepdims=True) + eps
    for _ in range(o.rounds - 1):
        weights /= weights.sum(axis=2, keepdims=True) + eps
        weights /= weights.sum(axis=1, keepdims=True) + eps
    return weights


@computes(op.SumStreams)
def _sum_streams(forward: ForwardContext, o: op.SumStreams, read: Read) -> Floats:
    factors: Floats = read(o.factors)
    return np.asarray(np.einsum("ts,tsw->tw", factors, read(o.x).reshape(*factors.shape, -1)), np.float32)


@computes(op.MixStreams)
def _mix_streams(forward: ForwardContext, o: op.MixStreams, read: Read) -> Floats:
    x: Floats = read(o.x)
    between: Floats = read(o.between)
    between = between if o.to_first else between.transpose(0, 2, 1)
    mixed: Floats = np.matmul(between, x.reshape(len(x), between.shape[1], -1))
    return mixed.reshape(x.shape)


@computes(op.AddToStreams)
def _add_to_streams(forward: ForwardContext, o: op.AddToStreams, read: Read) -> Floats:
    x: Floats = read(o.x)
    added: Floats = (read(o.factors)[:, :, None] * read(o.part)[:, None]).reshape(x.shape)
    return np.add(x, added, out=added)


@computes(op.Stack)
def _stack(forward: ForwardContext, o: op.Stack, read: Read) -> Floats:
    return np.concatenate([read(part) for part in o.parts], axis=1)


@computes(op.AsLong)
def _as_long(forward: ForwardContext, o: op.AsLong, read: Read) -> Floats:
    x: Floats = read(o.x)
    wanted, own = (np.mean(v * v, axis=1, keepdims=True, dtype=np.float32) for v in (read(o.other), x))
    return np.asarray(x * np.sqrt(wanted) / np.sqrt(np.maximum(own, MIN_SQUARE)), np.float32)


@computes(op.AddToOthers)
def _add_to_others(forward: ForwardContext, o: op.AddToOthers, read: Read) -> Floats:
    x, part = read.own(o.x), read(o.part)
    x.reshape(len(x), -1, part.shape[1])[:, 1:] += part[:, None]
    return x
