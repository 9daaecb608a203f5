"""Operations of encoder-decoder models and of convolutions over frames on a device."""

import torch

from ..graph import encoder_operations as op
from ..graph.encoder_text import relative_bias
from ..products.matmul import gather
from .attention import Masked, attend
from .attention_operations import masked
from .context import DeviceContext
from .table import Values, computes


@computes(op.RelativeBias)
def _relative_bias(context: DeviceContext, o: op.RelativeBias, read: Values) -> torch.Tensor:
    weight, positions = o.layer.need("attn_rel_b.weight"), context.forward.positions
    bias = relative_bias(weight, positions, int(positions[-1]) + 1, o.farthest, causal=o.causal)
    return context.tensor(bias)[None]


@computes(op.BiasedAttention)
def _biased_attention(context: DeviceContext, o: op.BiasedAttention, read: Values) -> torch.Tensor:
    k, v = read(o.k), read(o.v)
    if o.causal:
        k, v = context.cached(o.layer.index, k, v)
    bias = None if o.bias is None else read(o.bias)
    seen = _all(context, len(k), o.causal, bias)
    return attend(read(o.q), k, v, 1, seen).flatten(1)


@computes(op.CrossAttention)
def _cross_attention(context: DeviceContext, o: op.CrossAttention, read: Values) -> torch.Tensor:
    assert context.cache is not None  # as `encoder_decoder.decode` checks
    k, v = context.cache.crossed(o.place)
    return attend(read(o.q), k, v, 1, _all(context, len(k), False, None)).flatten(1)


def _all(context: DeviceContext, keys: int, causal: bool, bias: torch.Tensor | None) -> Masked:
    return masked(context, None, keys, 1.0, causal=causal, bias=bias)


@computes(op.EmbedCodes)
def _embed_codes(context: DeviceContext, o: op.EmbedCodes, read: Values) -> torch.Tensor:
    assert context.forward.tokens is not None  # set by the callers of whole graphs
    return context.tensor(gather(o.outside.need("token_embd.weight"), context.forward.tokens))


@computes(op.FrameConvolution)
def _frame_convolution(context: DeviceContext, o: op.FrameConvolution, read: Values) -> torch.Tensor:
    x, kernel = read(o.x), context.weights.need_array(o.layer, f"{o.role}.weight")
    bias, taps = context.weights.need_array(o.layer, f"{o.role}.bias").reshape(-1), kernel.shape[-1]
    padded = torch.nn.functional.pad(x, (0, 0, taps // 2, taps // 2))
    around = padded.unfold(0, taps, 1)  # (frames, channels, taps)
    if o.each:
        return (around * kernel.reshape(-1, taps)).sum(dim=2) + bias
    return around.reshape(len(x), -1) @ kernel.reshape(len(kernel), -1).T + bias


@computes(op.FrameNorm)
def _frame_norm(context: DeviceContext, o: op.FrameNorm, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    grouped = x.reshape(len(x), o.groups, -1)
    centered = grouped - grouped.mean(dim=(0, 2), keepdim=True)
    normed = centered / (centered.square().mean(dim=(0, 2), keepdim=True) + o.eps).sqrt()
    weight, bias = (context.weights.need_array(o.layer, f"{o.role}.{each}").reshape(-1) for each in ("weight", "bias"))
    return normed.reshape(x.shape) * weight + bias


@computes(op.FrameAttention)
def _frame_attention(context: DeviceContext, o: op.FrameAttention, read: Values) -> torch.Tensor:
    q, k, v = read(o.q), read(o.k), read(o.v)
    mixed: torch.Tensor = torch.softmax(q @ k.T * q.shape[1] ** -0.5, dim=-1) @ v
    return mixed
