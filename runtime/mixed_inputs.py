"""Inputs of the value projection as mixed by attention, which is where errors of its weight count."""

from collections.abc import Iterator

import numpy as np

from archs.hparams.model_hparams import LayerHParams

from .arrays import Floats, Ids
from .layer import ForwardContext, Layer
from .mixers.attention import AttentionOptions, attend


def observe_mixed(forward: ForwardContext, layer: Layer, own: LayerHParams, x: Floats, q: Floats, k: Floats) -> None:
    """Call `forward.observe_values` with x (tokens, width), mixed by q (tokens, heads, d) and k (tokens, kv heads, d).

    As many mixtures as there are tokens: of every head, but of a few queries each.
    """
    read_by = value_weight(forward, layer, own)
    if forward.observe_values is None or read_by is None:
        return
    for mixed in _mixed(forward, layer, own, x, q, k):
        forward.observe_values(*read_by, mixed)


def value_weight(forward: ForwardContext, layer: Layer, own: LayerHParams) -> tuple[str, int] | None:
    """Return the name of the weight that makes values and their first row in it, if their mixed inputs are observed."""
    if forward.observe_values is None or forward.hparams.alibi or forward.cache is not None:
        return None
    if "attn_v.weight" in layer:
        return layer.need("attn_v.weight").name, 0
    if "attn_qkv.weight" in layer:
        return layer.need("attn_qkv.weight").name, (own.heads + own.kv_heads) * own.key_width
    return None


def asked_of_text(heads: int, length: int) -> Ids:
    """Return the positions of a text whose queries mix inputs: as many of them as give each head's `length` in all."""
    return np.arange(heads // 2 % length, length, min(heads, length))


def _mixed(
    forward: ForwardContext, layer: Layer, own: LayerHParams, x: Floats, q: Floats, k: Floats
) -> Iterator[Floats]:
    heads, kv_heads, length = q.shape[1], k.shape[1], forward.length
    group, asked = heads // kv_heads, asked_of_text(heads, length)
    sinks = layer.array("attn_sinks.weight")
    for text in range(forward.texts):
        rows = slice(text * length, (text + 1) * length)
        queries, inputs = q[rows][asked], x[rows][:, None, :]
        for g in range(kv_heads):
            mine = slice(g * group, (g + 1) * group)
            options = AttentionOptions(
                window=own.window,
                softcap=forward.hparams.attention_softcap,
                causal=forward.block.causal,
                sinks=None if sinks is None else sinks[mine],
                chunk=own.chunk,
            )
            mixed = attend(
                np.ascontiguousarray(queries[:, mine]),
                np.ascontiguousarray(k[rows, g : g + 1]),
                inputs,
                forward.positions[asked],
                own.attention_scale,
                options,
                threads=forward.threads,
            )
            yield mixed.reshape(-1, x.shape[1])
