"""Rotation and attention on a device (see `runtime.graph.operations`)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from archs.hparams.model_hparams import LayerHParams

from ..arrays import Ids
from ..branches import Branches
from ..graph import operations as op
from ..mixed_inputs import asked_of_text, value_weight
from ..mixers.attention import AttentionOptions
from ..mixers.latent_attention import attention_scale, size_of
from ..mixers.self_attention import alibi_slopes, keys_after, temperature
from .attention import Masked, Visible, attend
from .context import DeviceContext
from .table import Values, computes


def rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], kind: str) -> torch.Tensor:
    """Return heads x (n, heads, width) with their first values rotated. kind: "adjacent" or "halves" pairs."""
    cos, sin = (each[:, None] for each in angles)
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if kind == "adjacent":
        a, b = turned[..., 0::2], turned[..., 1::2]
        new = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        new = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((new, rest), dim=-1) if rest.shape[-1] else new


@computes(op.Rope)
def _rope(context: DeviceContext, o: op.Rope, read: Values) -> torch.Tensor:
    return rotate(read(o.x), context.rope(o.own), context.hparams.rope)


@computes(op.ScaleQueries)
def _scale_queries(context: DeviceContext, o: op.ScaleQueries, read: Values) -> torch.Tensor:
    def factors() -> torch.Tensor | None:
        each = temperature(context.forward, o.rotated)
        return None if each is None else context.tensor(each)[:, None, None]

    q, scales = read(o.x), context.once(("temperature", o.rotated), factors)
    scaled: torch.Tensor = q if scales is None else q * scales
    return scaled


def visible(context: DeviceContext, options: AttentionOptions, positions: Ids, keys: int, name: Any = "") -> Visible:
    """Return the keys of a text that queries at these positions see. name: of positions other than the pass's."""

    def made() -> Visible:
        first, last = options.seen(positions, keys)
        return Visible(first, last, (context.tensor(first), context.tensor(last)))

    alike = options.causal, options.window, options.chunk, options.keys_after is None
    seen: Visible = context.once(("visible", name, keys, *alike), made)
    return seen


def masked(context: DeviceContext, window: int | None, keys: int, scale: float, **more: Any) -> Masked:
    """Return the keys of each text that its queries see in a layer with such a window, by their positions.

    more: causal, chunk, keys_after as of `AttentionOptions`; the rest as of `Masked`.
    """
    options = AttentionOptions(
        more.pop("causal", context.block.causal), window, more.pop("chunk", None), more.pop("keys_after", None)
    )
    return Masked(visible(context, options, context.forward.positions, keys), scale, **more)


def keys_of_text(context: DeviceContext, k: torch.Tensor) -> int:
    return len(k) // context.texts


@computes(op.Attention)
def _attention(context: DeviceContext, o: op.Attention, read: Values) -> torch.Tensor:
    forward, own, q = context.forward, o.own, read(o.q)
    k, v = context.cached(o.layer.index, read(o.k), read(o.v))
    _observe_mixed(context, o, read(o.x), q, k)
    if o.layer.index in context.once("sources", lambda: {each.kv_source_layer for each in forward.hparams.layers}):
        forward.shared_keys[o.layer.index] = k, v
    keys = keys_of_text(context, k)
    if o.chosen is not None:
        seen = masked(context, None, keys, own.attention_scale, bias=read(o.chosen), causal=True)
        return attend(q, k, v, context.texts, seen).flatten(1)
    sinks = context.weights.array(o.layer, "attn_sinks.weight")
    if forward.tree is not None:
        bias = context.tensor(forward.tree.bias(keys - len(q), own.window, own.chunk))[None, None]
        seen = masked(context, None, keys, own.attention_scale, bias=bias, sinks=sinks, causal=False)
        return attend(q, k, v, context.texts, seen).flatten(1)
    options = AttentionOptions(context.block.causal, own.window, own.chunk, keys_after=keys_after(forward, own.window))

    def within(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: Ids, texts: int) -> torch.Tensor:
        n, m = len(q) // texts, len(k) // texts
        place = "" if positions is forward.positions else (int(positions[0]), n)
        seen = Masked(
            visible(context, options, positions, m, place),
            own.attention_scale,
            softcap=context.hparams.attention_softcap,
            sinks=sinks,
            **_distance_penalties(context, own, positions, m),
        )
        return attend(q, k, v, texts, seen).flatten(1)

    if forward.branches is not None:
        return _in_branches(forward.branches, within, q, k, v)
    return within(q, k, v, forward.positions, context.texts)


def _in_branches(
    branches: Branches, within: Callable[..., torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Return attention within every text of trees of texts, as `Branches.attend`."""
    out = q.new_empty((len(q), q.shape[1] * v.shape[2]))
    for trunk, rows, real in branches.parts:
        count = trunk.stop - trunk.start
        if count:
            out[trunk] = within(q[trunk], k[trunk], v[trunk], np.arange(count), 1)
        if rows.size:
            before = np.broadcast_to(np.arange(trunk.start, trunk.stop), (len(rows), count))
            keys, own, real = (
                torch.from_numpy(each).to(q.device)
                for each in (np.concatenate([before, rows], axis=1).reshape(-1), rows.reshape(-1), real)
            )
            at = np.arange(count, count + rows.shape[1])
            out[own[real]] = within(q[own], k[keys], v[keys], at, len(rows))[real]
    return out


def _observe_mixed(context: DeviceContext, o: op.Attention, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> None:
    """Call the observer of values as `runtime.mixed_inputs` does."""
    forward, own = context.forward, o.own
    read_by = value_weight(forward, o.layer, own)
    if forward.observe_values is None or read_by is None:
        return
    texts, group, asked = context.texts, q.shape[1] // k.shape[1], asked_of_text(q.shape[1], context.length)
    options = AttentionOptions(context.block.causal, own.window, own.chunk)
    at, rows = forward.positions[asked], context.tensor(asked)
    seen = Masked(
        visible(context, options, at, keys_of_text(context, k), "asked"),
        own.attention_scale,
        softcap=context.hparams.attention_softcap,
    )
    queries = q.unflatten(0, (texts, -1))[:, rows].flatten(0, 1)
    sinks, parts = context.weights.array(o.layer, "attn_sinks.weight"), []
    for g in range(k.shape[1]):
        mine = slice(g * group, (g + 1) * group)
        seen_here = seen if sinks is None else replace(seen, sinks=sinks[mine])
        parts.append(attend(queries[:, mine], k[:, g : g + 1], x[:, None], texts, seen_here).flatten(0, 1))
    context.observe_values(*read_by, torch.cat(parts))


def _distance_penalties(
    context: DeviceContext, own: LayerHParams, positions: Ids, keys: int
) -> dict[str, torch.Tensor]:
    """Return ALiBi as arguments of `Masked`; none without it."""
    network = context.forward.network
    slopes, alibi_terms = alibi_slopes(network, own.heads), network.block.alibi_terms
    if slopes is None:
        return {}
    if alibi_terms is None:
        return {"slopes": context.tensor(slopes), "positions": context.tensor(positions)}
    terms = context.tensor(alibi_terms(slopes, keys, own.attention_scale))
    return {"bias": terms[None, :, None].expand(1, own.heads, len(positions), keys)}


@computes(op.SharedAttention)
def _shared_attention(context: DeviceContext, o: op.SharedAttention, read: Values) -> torch.Tensor:
    own = o.own
    k, v = context.forward.shared_keys[own.kv_source_layer or 0]
    seen = masked(
        context,
        own.window,
        keys_of_text(context, k),
        own.attention_scale,
        softcap=context.hparams.attention_softcap,
        causal=True,
        keys_after=keys_after(context.forward, own.window),
    )
    return attend(read(o.q), k, v, context.texts, seen).flatten(1)


@computes(op.PerHead)
def _per_head(context: DeviceContext, o: op.PerHead, read: Values) -> torch.Tensor:
    return context.project_heads(o.layer, o.role, read(o.x))


@computes(op.Concat)
def _concat(context: DeviceContext, o: op.Concat, read: Values) -> torch.Tensor:
    x, y = read(o.x), read(o.y)
    return torch.cat((x, y.expand(*x.shape[:-1], y.shape[-1])), dim=-1)


@computes(op.LatentAttention)
def _latent_attention(context: DeviceContext, o: op.LatentAttention, read: Values) -> torch.Tensor:
    forward, query, key = context.forward, read(o.q), read(o.k)[0]
    if o.chosen is not None:
        forward.hidden_keys = read(o.chosen)
    own = forward.numbers(o.layer)
    width = size_of(context.keys, own, "attention.kv_lora_rank")
    scale = attention_scale(context.keys, size_of(context.keys, own, "attention.key_length_mla"))
    bias = None if own.window is not None else forward.hidden_keys
    sinks = context.weights.array(o.layer, "attn_sinks.weight")
    seen = masked(context, own.window, keys_of_text(context, key), scale, sinks=sinks, bias=bias, causal=True)
    return attend(query, key, key[..., :width], context.texts, seen)


@computes(op.WidenedAttention)
def _widened_attention(context: DeviceContext, o: op.WidenedAttention, read: Values) -> torch.Tensor:
    own = context.forward.numbers(o.layer)
    k, v = context.cached(o.layer.index, read(o.k), read(o.v))
    scale = attention_scale(context.keys, own.key_width)
    seen = masked(context, None, keys_of_text(context, k), scale, causal=True)
    return attend(read(o.q), k, v, context.texts, seen).flatten(1)
