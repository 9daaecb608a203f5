"""Products, norms, sums, gates, nets, experts on a device (see `runtime.graph.operations`)."""

import torch

from archs.spec import sum_factor

from ..embedding import embed, layer_input
from ..experts import of_tokens
from ..graph import operations as op
from ..head import output_of
from ..layer import Layer
from . import activations, experts
from .context import DeviceContext, layer_norm, rms_norm
from .logits import DeviceLogits
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


# Nets and experts


@computes(op.DownByNeuron)
def _down_by_neuron(context: DeviceContext, o: op.DownByNeuron, read: Values) -> torch.Tensor:
    return _down(context, o.layer, read(o.x))


def _down(context: DeviceContext, layer: Layer, hidden: torch.Tensor) -> torch.Tensor:
    result = context.product(hidden, context.weights.matrix(layer.need("ffn_down_t.weight")).T)
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


# Whole graphs


@computes(op.Embed)
def _embed(context: DeviceContext, o: op.Embed, read: Values) -> torch.Tensor:
    assert context.forward.tokens is not None  # set by the callers of whole graphs
    return context.tensor(embed(context.forward, context.forward.tokens))


@computes(op.Logits)
def _logits(context: DeviceContext, o: op.Logits, read: Values) -> torch.Tensor:
    forward, output = context.forward, output_of(context.forward.network)
    fields = context.host(read(o.x)), output.weight, output.finish(forward.threads), forward.threads, forward.precision
    return context.tensor(DeviceLogits(*fields, weights=context.weights, output=output).float32())
