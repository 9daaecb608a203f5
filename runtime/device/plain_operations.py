"""Products, norms, sums, gates, attention, experts on a device (see `runtime.graph.operations`)."""

from typing import Any

import torch

from archs.hparams.model_hparams import LayerHParams
from archs.spec import sum_factor

from ..graph import operations as op
from ..layer import Layer
from ..mixers.attention import AttentionOptions
from ..mixers.latent_attention import attention_scale, size_of
from ..mixers.self_attention import alibi_slopes, keys_after, temperature
from . import activations, experts
from .attention import Masked, attend
from .context import DeviceContext, layer_norm, rms_norm
from .mixed_inputs import observe_mixed
from .table import Values, computes
from .weights import product


@computes(op.KeepRows)
def _keep_rows(context: DeviceContext, o: op.KeepRows, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return from_position(context, context.forward.first, x)


def from_position(context: DeviceContext, first: int, x: torch.Tensor) -> torch.Tensor:
    """Return rows of x (tokens, …) from position `first` of each text on."""
    if not first:
        return x
    return x.reshape(context.texts, context.length, *x.shape[1:])[:, first:].reshape(-1, *x.shape[1:])


@computes(op.Linear)
def _linear(context: DeviceContext, o: op.Linear, read: Values) -> torch.Tensor:
    y = context.project(o.layer, o.role, read.rows(o.x))
    return y.reshape(len(y), *o.shape())


@computes(op.Adapted)
def _adapted(context: DeviceContext, o: op.Adapted, read: Values) -> torch.Tensor:
    part = read(o.part)
    y = part.reshape(len(part), -1).clone()
    return context.adapted(o.layer, o.role, read(o.x), y).reshape(part.shape)


@computes(op.Norm)
def _norm(context: DeviceContext, o: op.Norm, read: Values) -> torch.Tensor:
    return context.norm(o.layer, o.role, read(o.x), o.eps)


@computes(op.PlainNorm)
def _plain_norm(context: DeviceContext, o: op.PlainNorm, read: Values) -> torch.Tensor:
    return rms_norm(read(o.x), None, o.eps)


@computes(op.HeadNorm)
def _head_norm(context: DeviceContext, o: op.HeadNorm, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    weight = context.weights.need_array(o.layer, f"{o.role}.weight")
    if weight.shape == x.shape[2:]:
        return context.norm(o.layer, o.role, x)
    if weight.ndim == 1:
        return context.norm(o.layer, o.role, x.reshape(len(x), -1)).reshape(x.shape)
    eps = context.block.head_norm_epsilon or context.hparams.eps
    by_mean_square = context.block.norm.startswith("rms") and not context.block.head_norm_epsilon
    normed = (rms_norm(x, None, eps) if by_mean_square else layer_norm(x, None, None, eps)) * weight
    bias = context.weights.array(o.layer, f"{o.role}.bias")
    return normed if bias is None else normed + bias


@computes(op.Add)
def _add(context: DeviceContext, o: op.Add, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x + read(o.part) if o.scale == 1 else x + read(o.part) * o.scale


@computes(op.Scale)
def _scale(context: DeviceContext, o: op.Scale, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x * o.factor


@computes(op.ScaleBy)
def _scale_by(context: DeviceContext, o: op.ScaleBy, read: Values) -> torch.Tensor:
    x, factors = read(o.x), context.weights.need_array(o.layer, o.role)
    factors = factors.abs() if o.is_absolute else factors
    scaled: torch.Tensor = x * factors.reshape(o.x.shape if factors.numel() == o.x.width else (-1, 1))
    return scaled


@computes(op.AddWeight)
def _add_weight(context: DeviceContext, o: op.AddWeight, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x + context.weights.need_array(o.layer, o.role).reshape(o.x.shape)


@computes(op.Offset)
def _offset(context: DeviceContext, o: op.Offset, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x + o.number


@computes(op.Multiply)
def _multiply(context: DeviceContext, o: op.Multiply, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x * read(o.y)


@computes(op.Reshape)
def _reshape(context: DeviceContext, o: op.Reshape, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x.reshape(len(x), *o.size)


@computes(op.Columns)
def _columns(context: DeviceContext, o: op.Columns, read: Values) -> torch.Tensor:
    columns: torch.Tensor = read(o.x)[..., o.start : o.stop]
    return columns.reshape(len(columns), *o.shape())


@computes(op.Clamp)
def _clamp(context: DeviceContext, o: op.Clamp, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x.clamp(-o.limit if o.low is None else o.low, o.limit)


@computes(op.Activate)
def _activate(context: DeviceContext, o: op.Activate, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return activations.xielu(x, *o.parameters) if o.activation == "xielu" else activations.ACTIVATIONS[o.activation](x)


@computes(op.Gated)
def _gated(context: DeviceContext, o: op.Gated, read: Values) -> torch.Tensor:
    gate, up = read(o.gate), read(o.up)
    if o.activation == "situ":
        return activations.situ(gate, up, *o.bounds)
    if o.clamps_both:
        function = activations.gated_of_clamped if o.clamps_gate_first else activations.gated_within
        return function(o.activation, gate, up, o.limit)
    return activations.gated(o.activation, gate, up, o.limit)


@computes(op.SparseGate)
def _sparse_gate(context: DeviceContext, o: op.SparseGate, read: Values) -> torch.Tensor:
    gate: torch.Tensor = read(o.x)
    bound = gate.mean(dim=1, keepdim=True) + gate.std(dim=1, keepdim=True, correction=0) * o.deviations
    return torch.relu(gate - bound)


@computes(op.ScaleByGate)
def _scale_by_gate(context: DeviceContext, o: op.ScaleByGate, read: Values) -> torch.Tensor:
    mixed, gates = read(o.x), read.rows(o.gate)
    gates = activations.ACTIVATIONS["softplus" if o.function == "softplus" else "sigmoid"](gates)
    if gates.shape == mixed.shape:
        return gates * mixed
    each: torch.Tensor = mixed.reshape(*gates.shape, -1) * gates[:, :, None]
    return each.reshape(mixed.shape)


# Attention


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
    q, factors = read(o.x), temperature(context.forward, o.rotated)
    scaled: torch.Tensor = q if factors is None else q * context.tensor(factors)[:, None, None]
    return scaled


def masked(context: DeviceContext, window: int | None, keys: int, scale: float, **more: Any) -> Masked:
    """Return the keys of each text that its queries see in a layer with such a window, by their positions.

    more: causal, chunk, keys_after as of `AttentionOptions`; the rest as of `Masked`.
    """
    options = AttentionOptions(
        more.pop("causal", context.block.causal), window, more.pop("chunk", None), more.pop("keys_after", None)
    )
    first, last = options.seen(context.forward.positions, keys)
    return Masked(context.tensor(first), context.tensor(last), scale, **more)


def keys_of_text(context: DeviceContext, k: torch.Tensor) -> int:
    return len(k) // context.texts


@computes(op.Attention)
def _attention(context: DeviceContext, o: op.Attention, read: Values) -> torch.Tensor:
    forward, own, q = context.forward, o.own, read(o.q)
    k, v = context.cached(o.layer.index, read(o.k), read(o.v))
    if forward.observe_values is not None:
        observe_mixed(context, o.layer, own, read(o.x), q, k)
    if any(other.kv_source_layer == o.layer.index for other in forward.hparams.layers):
        forward.shared_keys[o.layer.index] = k, v
    keys = keys_of_text(context, k)
    if o.chosen is not None:
        hidden = read(o.chosen)
        seen = masked(context, None, keys, own.attention_scale, bias=hidden, causal=True)
        return attend(q, k, v, context.texts, seen).flatten(1)
    seen = masked(
        context,
        own.window,
        keys,
        own.attention_scale,
        softcap=context.hparams.attention_softcap,
        sinks=context.weights.array(o.layer, "attn_sinks.weight"),
        chunk=own.chunk,
        keys_after=keys_after(forward, own.window),
        **_distance_penalties(context, own, keys),
    )
    return attend(q, k, v, context.texts, seen).flatten(1)


def _distance_penalties(context: DeviceContext, own: LayerHParams, keys: int) -> dict[str, torch.Tensor]:
    """Return ALiBi as arguments of `Masked`; none without it."""
    network = context.forward.network
    slopes, alibi_terms = alibi_slopes(network, own.heads), network.block.alibi_terms
    if slopes is None:
        return {}
    if alibi_terms is None:
        return {"slopes": context.tensor(slopes), "positions": context.tensor(context.forward.positions)}
    terms = context.tensor(alibi_terms(slopes, keys, own.attention_scale))
    return {"bias": terms[None, :, None].expand(1, own.heads, context.length, keys)}


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
    x: torch.Tensor = read(o.x)
    return torch.stack([context.project_expert(o.layer, o.role, x[:, i], i) for i in range(x.shape[1])], dim=1)


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


# Nets and experts


@computes(op.DownByNeuron)
def _down_by_neuron(context: DeviceContext, o: op.DownByNeuron, read: Values) -> torch.Tensor:
    return _down(context, o.layer, read(o.x))


def _down(context: DeviceContext, layer: Layer, hidden: torch.Tensor) -> torch.Tensor:
    result = hidden @ context.weights.matrix(layer.need("ffn_down_t.weight")).float()
    bias = context.weights.array(layer, "ffn_down_t.bias")
    return result if bias is None else result + bias


@computes(op.PredictedNet)
def _predicted_net(context: DeviceContext, o: op.PredictedNet, read: Values) -> torch.Tensor:
    sparsity, layer, x = context.forward.sparsity, o.layer, read(o.x)
    assert sparsity is not None  # required by such a graph
    first, second = (context.weights.matrix(layer.need(f"fc{number}.weight")) for number in (1, 2))
    marked = product(torch.relu(product(read(o.residual), first)), second) >= sparsity.threshold
    sparsity.marked += int(marked.sum())
    sparsity.neurons += marked.numel()
    hidden = context.project(layer, "ffn_up", x)
    if "ffn_gate.weight" in layer:
        hidden = hidden * torch.relu(context.project(layer, "ffn_gate", x))
    else:
        hidden = torch.relu(hidden)
    return _down(context, layer, hidden * marked)


@computes(op.PlainLinear)
def _plain_linear(context: DeviceContext, o: op.PlainLinear, read: Values) -> torch.Tensor:
    x, bias = read(o.x), context.weights.array(o.layer, f"{o.role}.bias")
    weight = context.weights.need_array(o.layer, f"{o.role}.weight")
    if o.role == "ffn_gate_inp":
        context.observe(o.layer.need(f"{o.role}.weight"), x, 0, 1)
    y = product(x, weight.reshape(-1, x.shape[1]))
    return y if bias is None else y + bias


@computes(op.Softcap)
def _softcap(context: DeviceContext, o: op.Softcap, read: Values) -> torch.Tensor:
    return activations.softcap(read(o.x), o.cap)


@computes(op.Probabilities)
def _probabilities(context: DeviceContext, o: op.Probabilities, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    if o.scoring == "softmax":
        return torch.softmax(x, dim=-1)
    if o.scoring == "sigmoid":
        return torch.sigmoid(x)
    return activations.ACTIVATIONS["softplus"](x).sqrt()


@computes(op.BestGroups)
def _best_groups(context: DeviceContext, o: op.BestGroups, read: Values) -> torch.Tensor:
    ranked: torch.Tensor = read(o.x)
    each = ranked.reshape(len(ranked), o.groups, -1)
    best = each.topk(2 if o.pairs else 1, dim=2).values.sum(dim=2)
    kept = experts.descending(best)[:, : o.used]
    allowed = torch.zeros_like(best, dtype=torch.bool).scatter(1, kept, True)
    return each.masked_fill(~allowed[:, :, None], -torch.inf).reshape(ranked.shape)


@computes(op.TopExperts)
def _top_experts(context: DeviceContext, o: op.TopExperts, read: Values) -> torch.Tensor:
    chosen = experts.descending(read(o.x))[:, : o.used]
    return chosen if o.size == 1 else chosen // o.size


@computes(op.ExpertsOfTokens)
def _experts_of_tokens(context: DeviceContext, o: op.ExpertsOfTokens, read: Values) -> torch.Tensor:
    from ..experts import of_tokens

    return context.tensor(of_tokens(context.forward, o.layer, len(read(o.x))))


@computes(op.SparseMixer)
def _sparse_mixer(context: DeviceContext, o: op.SparseMixer, read: Values) -> torch.Tensor:
    return experts.sparse_mixer(read(o.x), o.used, o.jitter)[o.gives_weights]


@computes(op.ExpertWeights)
def _expert_weights(context: DeviceContext, o: op.ExpertWeights, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x.gather(1, read(o.chosen))


@computes(op.NormalizeWeights)
def _normalize_weights(context: DeviceContext, o: op.NormalizeWeights, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x / x.sum(dim=1, keepdim=True).clamp(min=experts.MIN_SUM)


@computes(op.ScaleByExpert)
def _scale_by_expert(context: DeviceContext, o: op.ScaleByExpert, read: Values) -> torch.Tensor:
    x: torch.Tensor = read(o.x)
    return x * context.weights.need_array(o.layer, "ffn_down_exps.scale")[read(o.chosen)]


@computes(op.Experts)
def _experts(context: DeviceContext, o: op.Experts, read: Values) -> torch.Tensor:
    return experts.add_experts(context, o.layer, read(o.x), read(o.chosen), read(o.weighted), o.suffix)


@computes(op.Combine)
def _combine(context: DeviceContext, o: op.Combine, read: Values) -> torch.Tensor:
    total, factor = read(o.routed) + read(o.shared), sum_factor(o.function)
    assert factor is not None  # families declare no other sums
    combined: torch.Tensor = total if factor == 1 else total * factor
    return combined


@computes(op.LayerInput)
def _layer_input(context: DeviceContext, o: op.LayerInput, read: Values) -> torch.Tensor:
    from ..embedding import layer_input

    return context.tensor(layer_input(context.forward, o.layer))


@computes(op.ScaleAndSkip)
def _scale_and_skip(context: DeviceContext, o: op.ScaleAndSkip, read: Values) -> torch.Tensor:
    x, factor = read(o.x), context.weights.need_array(o.layer, "layer_output_scale.weight")
    embedded = context.forward.embedded
    if embedded is None:
        return factor * x
    first = 0 if len(x) == len(embedded) else context.forward.first
    skipped: torch.Tensor = x + from_position(context, first, context.tensor(embedded)) * factor
    return skipped


@computes(op.ExpertLinear)
def _expert_linear(context: DeviceContext, o: op.ExpertLinear, read: Values) -> torch.Tensor:
    return context.project_expert(o.layer, o.role, read(o.x), o.number)
