"""Inputs of the value projection as mixed by attention (see `runtime.mixed_inputs`), on a device."""

import torch

from archs.hparams.model_hparams import LayerHParams

from ..layer import Layer
from ..mixed_inputs import asked_of, value_rows
from ..mixers.attention import AttentionOptions
from .attention import Masked, attend
from .context import DeviceContext


def observe_mixed(
    context: DeviceContext, layer: Layer, own: LayerHParams, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor
) -> None:
    """Call the observer of values with x (tokens, width), mixed by q (tokens, heads, d) and k (tokens, kv heads, d)."""
    rows = value_rows(context.forward, layer, own)
    if rows is None:
        return
    heads, kv_heads, texts, length = q.shape[1], k.shape[1], context.texts, context.length
    group, asked = heads // kv_heads, asked_of(length, heads)
    options = AttentionOptions(context.block.causal, own.window, own.chunk)
    first, last = map(context.tensor, options.seen(context.forward.positions[asked], length))
    sinks, softcap = context.weights.array(layer, "attn_sinks.weight"), context.hparams.attention_softcap
    queries = q.reshape(texts, length, heads, -1)[:, context.tensor(asked)].flatten(0, 1)
    parts = []
    for number in range(kv_heads):
        mine = slice(number * group, (number + 1) * group)
        seen = Masked(first, last, own.attention_scale, softcap, sinks=None if sinks is None else sinks[mine])
        mixed = attend(queries[:, mine], k[:, number : number + 1], x[:, None], texts, seen)
        parts.append(mixed.reshape(-1, x.shape[-1]))
    context.observe_values(*rows, torch.cat(parts))
