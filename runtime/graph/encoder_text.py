"""The executor for texts: operations of encoder-decoder models and of convolutions over frames (see
`encoder_operations`).
"""

import math

import numpy as np

from quants import Tensor

from .. import ops
from ..arrays import Floats, Ids
from ..layer import ForwardContext
from ..mixers.attention import BIDIRECTIONAL, AttentionOptions, attend
from ..products.matmul import gather
from . import encoder_operations as op
from .read import Read, computes


@computes(op.RelativeBias)
def _relative_bias(forward: ForwardContext, o: op.RelativeBias, read: Read) -> Floats:
    weight, keys = o.layer.need("attn_rel_b.weight"), int(forward.positions[-1]) + 1
    return relative_bias(weight, forward.positions, keys, o.farthest, causal=o.causal)


@computes(op.BiasedAttention)
def _biased_attention(forward: ForwardContext, o: op.BiasedAttention, read: Read) -> Floats:
    k, v = read(o.k), read(o.v)
    if o.causal and forward.cache is not None:
        k, v = forward.cache.append(o.layer.index, k, v)
    options = AttentionOptions(causal=o.causal, bias=None if o.bias is None else read(o.bias))
    return attend(read(o.q), k, v, forward.positions, 1.0, options, threads=forward.threads)


@computes(op.CrossAttention)
def _cross_attention(forward: ForwardContext, o: op.CrossAttention, read: Read) -> Floats:
    assert forward.cache is not None  # as `encoder_decoder.decode` checks
    k, v = forward.cache.context[o.place]
    return attend(read(o.q), k, v, forward.positions, 1.0, BIDIRECTIONAL, threads=forward.threads)


@computes(op.EmbedCodes)
def _embed_codes(forward: ForwardContext, o: op.EmbedCodes, read: Read) -> Floats:
    assert forward.tokens is not None  # set by the callers of whole graphs
    return gather(o.outside.need("token_embd.weight"), forward.tokens)


@computes(op.FrameConvolution)
def _frame_convolution(forward: ForwardContext, o: op.FrameConvolution, read: Read) -> Floats:
    x, kernel = read(o.x), o.layer.need_array(f"{o.role}.weight")
    around, bias = windows(x, kernel.shape[-1]), o.layer.need_array(f"{o.role}.bias").reshape(-1)
    if o.each:
        mixed: Floats = np.einsum("tkc,ck->tc", around, kernel.reshape(-1, kernel.shape[-1]), optimize=True)
    else:
        flat = np.ascontiguousarray(kernel.transpose(0, 2, 1)).reshape(len(kernel), -1)
        mixed = around.reshape(len(x), -1) @ flat.T
    return mixed + bias


def windows(x: Floats, taps: int) -> Floats:
    """Return each frame of x (frames, channels) with its neighbours, and zeros past the ends: (frames, taps,
    channels).
    """
    padded = np.pad(x, ((taps // 2, taps // 2), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=0)
    return np.ascontiguousarray(views.transpose(0, 2, 1))


@computes(op.FrameNorm)
def _frame_norm(forward: ForwardContext, o: op.FrameNorm, read: Read) -> Floats:
    x: Floats = read(o.x)
    grouped = x.reshape(len(x), o.groups, -1).astype(np.float64)
    centered = grouped - grouped.mean(axis=(0, 2), keepdims=True)
    normed = centered / np.sqrt((centered**2).mean(axis=(0, 2), keepdims=True) + o.eps)
    weight, bias = (o.layer.need_array(f"{o.role}.{name}").reshape(-1) for name in ("weight", "bias"))
    result: Floats = normed.reshape(x.shape).astype(np.float32) * weight + bias
    return result


@computes(op.FrameAttention)
def _frame_attention(forward: ForwardContext, o: op.FrameAttention, read: Read) -> Floats:
    q, k, v = read(o.q), read(o.k), read(o.v)
    mixed: Floats = ops.softmax(q @ k.T * np.float32(q.shape[1] ** -0.5)) @ v
    return mixed


def relative_bias(weight: Tensor, positions: Ids, keys: int, farthest: int, *, causal: bool) -> Floats:
    """Return the bias of the score of each head, query and key: float32 (heads, queries, keys).

    weight: (buckets, heads). Near distances have a bucket each, farther ones share buckets that grow with the
    logarithm; without causal, keys after the query use the upper half of them.
    """
    table = weight.float32()
    distance = positions[:, None] - np.arange(keys)
    count, offset = len(table), np.zeros_like(distance)
    if not causal:
        count //= 2
        offset = np.where(distance < 0, count, 0)
        distance = np.abs(distance)
    distance = np.maximum(distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    steps = ratio / np.float32(math.log(farthest / exact)) * np.float32(count - exact)
    far = np.minimum(exact + steps.astype(np.int64), count - 1)
    bucket = offset + np.where(distance < exact, distance, far)
    return np.ascontiguousarray(table[bucket].transpose(2, 0, 1))
