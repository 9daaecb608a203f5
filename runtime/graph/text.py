"""The executor for texts: each operation over all tokens at once, in numpy and numba, one after the other."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from .. import experts, ngrams, ops
from ..arrays import Floats
from ..embedding import embed, layer_input
from ..feed_forward import down_by_neuron, sparse
from ..head import LazyLogits, output_of
from ..layer import ForwardContext
from ..mixers.latent_attention import attend_to_latents, attend_to_widened, per_head
from ..mixers.self_attention import attend_in_cache, attend_to_shared, head_norm, scaled_queries
from ..rope import apply_rope
from . import encoder_text, extended_text, indexer_text, recurrent_text, stream_text
from . import operations as op
from .builder import Graph
from .read import COMPUTE, Read, computed, computes

Hook = Callable[[Floats], None]
IN_MODULES = encoder_text, extended_text, indexer_text, recurrent_text, stream_text  # their functions are in `COMPUTE`


def run(graph: Graph, forward: ForwardContext, x: Floats, hooks: Mapping[int, Hook] | None = None) -> Any:
    """Return the graph's result for the input x (tokens, width), whose array stays as it is.

    hooks: by a value's number, called with the computed value; it may be changed in place. Raises ModelError if a
    layer's output is not finite, with the layer's name.
    """
    read, hooks = Read(graph), hooks or {}
    for number, node in enumerate(graph.nodes):
        read.number = number
        if isinstance(node.operation, op.Input):
            read.values[number] = x
        else:
            with forward.timed(node.category):
                read.values[number] = computed(forward, node, read)
        if number in graph.checked:
            forward.finite(graph.checked[number], read.values[number])
        if number in hooks:
            hooks[number](read.values[number])
        read.forget()
    return read.values[graph.output.number]


@computes(op.KeepRows)
def _keep_rows(forward: ForwardContext, o: op.KeepRows, read: Read) -> Floats:
    x: Floats = read(o.x)
    return forward.from_position(forward.first, x) if forward.first else x


@computes(op.Linear)
def _linear(forward: ForwardContext, o: op.Linear, read: Read) -> Floats:
    y = forward.project(o.layer, o.role, read.product_inputs(forward, o.x))
    return y.reshape(len(y), *o.shape())


@computes(op.Adapted)
def _adapted(forward: ForwardContext, o: op.Adapted, read: Read) -> Floats:
    y = read.own(o.part)
    return forward.adapted(o.layer, o.role, read(o.x), y.reshape(len(y), -1)).reshape(y.shape)


@computes(op.Norm)
def _norm(forward: ForwardContext, o: op.Norm, read: Read) -> Floats:
    return forward.norm(o.layer, o.role, read(o.x), o.eps)


@computes(op.PlainNorm)
def _plain_norm(forward: ForwardContext, o: op.PlainNorm, read: Read) -> Floats:
    return ops.rms_norm(read(o.x), None, o.eps, forward.threads)


@computes(op.HeadNorm)
def _head_norm(forward: ForwardContext, o: op.HeadNorm, read: Read) -> Floats:
    return head_norm(forward, o.layer, o.role, read(o.x))


@computes(op.Add)
def _add(forward: ForwardContext, o: op.Add, read: Read) -> Floats:
    part = read.own(o.part)
    if o.scale != 1:
        part *= np.float32(o.scale)
    total: Floats = np.add(read(o.x), part, out=part)
    return total


@computes(op.Scale)
def _scale(forward: ForwardContext, o: op.Scale, read: Read) -> Floats:
    x = read.own(o.x)
    x *= np.float32(o.factor)
    return x


@computes(op.Columns)
def _columns(forward: ForwardContext, o: op.Columns, read: Read) -> Floats:
    columns: Floats = read(o.x)[..., o.start : o.stop].copy()  # also of one token, which later nodes may overwrite
    return columns.reshape(len(columns), *o.shape())


@computes(op.Clamp)
def _clamp(forward: ForwardContext, o: op.Clamp, read: Read) -> Floats:
    x = read.own(o.x)
    low = -o.limit if o.low is None else o.low
    return np.clip(x, np.float32(low), np.float32(o.limit), out=x)


@computes(op.Activate)
def _activate(forward: ForwardContext, o: op.Activate, read: Read) -> Floats:
    x = read.own(o.x)
    return ops.xielu(x, *o.parameters) if o.activation == "xielu" else ops.activated(o.activation, x, forward.threads)


@computes(op.ScaleBy)
def _scale_by(forward: ForwardContext, o: op.ScaleBy, read: Read) -> Floats:
    x, factors = read.own(o.x), o.layer.need_array(o.role)
    factors = np.abs(factors) if o.is_absolute else factors
    x *= factors.reshape(o.x.shape if factors.size == o.x.width else (-1, 1))
    return x


@computes(op.AddWeight)
def _add_weight(forward: ForwardContext, o: op.AddWeight, read: Read) -> Floats:
    x = read.own(o.x)
    x += o.layer.need_array(o.role).reshape(o.x.shape)
    return x


@computes(op.Offset)
def _offset(forward: ForwardContext, o: op.Offset, read: Read) -> Floats:
    x = read.own(o.x)
    x += np.float32(o.number)
    return x


@computes(op.Multiply)
def _multiply(forward: ForwardContext, o: op.Multiply, read: Read) -> Floats:
    x = read.own(o.x)
    x *= read(o.y)
    return x


@computes(op.Reshape)
def _reshape(forward: ForwardContext, o: op.Reshape, read: Read) -> Floats:
    x: Floats = read(o.x)
    return x.reshape(len(x), *o.size)


@computes(op.ExpertLinear)
def _expert_linear(forward: ForwardContext, o: op.ExpertLinear, read: Read) -> Floats:
    return forward.project_expert(o.layer, o.role, read(o.x), o.number)


@computes(op.Gated)
def _gated(forward: ForwardContext, o: op.Gated, read: Read) -> Floats:
    gate, up, threads = read.own(o.gate), read(o.up), forward.threads
    if o.activation == "situ":
        return ops.situ(gate, up.copy(), *o.bounds, threads)
    if o.clamps_both:
        function = ops.gated_of_clamped if o.clamps_gate_first else ops.gated_within
        return function(o.activation, gate, up.copy(), o.limit, threads)
    return ops.gated(o.activation, gate, up, o.limit, threads)


@computes(op.SparseGate)
def _sparse_gate(forward: ForwardContext, o: op.SparseGate, read: Read) -> Floats:
    gate: Floats = read(o.x)
    threshold = gate.mean(axis=1, keepdims=True) + gate.std(axis=1, keepdims=True) * np.float32(o.deviations)
    return ops.relu(gate - threshold)


@computes(op.ScaleByGate)
def _scale_by_gate(forward: ForwardContext, o: op.ScaleByGate, read: Read) -> Floats:
    mixed, gates = read.own(o.x), read.rows(o.gate)
    softplus = o.function == "softplus"
    gates = np.logaddexp(gates, np.float32(0)) if softplus else ops.sigmoid(gates.copy(), threads=forward.threads)
    if gates.shape == mixed.shape:
        return np.multiply(mixed, gates, out=mixed)
    each: Floats = mixed.reshape(*gates.shape, -1) * gates[:, :, None]  # one for each head
    return each.reshape(mixed.shape)


@computes(op.Rope)
def _rope(forward: ForwardContext, o: op.Rope, read: Read) -> Floats:
    x = read.own(o.x)
    apply_rope(x, *forward.rope(o.own), forward.hparams.rope, forward.threads)
    return x


@computes(op.ScaleQueries)
def _scale_queries(forward: ForwardContext, o: op.ScaleQueries, read: Read) -> Floats:
    return scaled_queries(forward, read.own(o.x), o.rotated)


@computes(op.Attention)
def _attention(forward: ForwardContext, o: op.Attention, read: Read) -> Floats:
    chosen = None if o.chosen is None else read(o.chosen)
    return attend_in_cache(forward, o.layer, o.own, read(o.x), (read(o.q), read(o.k), read(o.v)), chosen)


@computes(op.SharedAttention)
def _shared_attention(forward: ForwardContext, o: op.SharedAttention, read: Read) -> Floats:
    return attend_to_shared(forward, o.own, read(o.q))


@computes(op.PerHead)
def _per_head(forward: ForwardContext, o: op.PerHead, read: Read) -> Floats:
    return per_head(forward, o.layer, o.role, read(o.x))


@computes(op.Concat)
def _concat(forward: ForwardContext, o: op.Concat, read: Read) -> Floats:
    x, y = read(o.x), read(o.y)
    return np.concatenate((x, np.broadcast_to(y, (*x.shape[:-1], y.shape[-1]))), axis=-1)


@computes(op.LatentAttention)
def _latent_attention(forward: ForwardContext, o: op.LatentAttention, read: Read) -> Floats:
    if o.chosen is not None:
        forward.hidden_keys = read(o.chosen)
    return attend_to_latents(forward, o.layer, read(o.q), read(o.k).keys)


@computes(op.WidenedAttention)
def _widened_attention(forward: ForwardContext, o: op.WidenedAttention, read: Read) -> Floats:
    return attend_to_widened(forward, o.layer, read(o.q), read(o.k), read(o.v))


@computes(op.DownByNeuron)
def _down_by_neuron(forward: ForwardContext, o: op.DownByNeuron, read: Read) -> Floats:
    return down_by_neuron(forward, o.layer, read(o.x))


@computes(op.PredictedNet)
def _predicted_net(forward: ForwardContext, o: op.PredictedNet, read: Read) -> Floats:
    assert forward.sparsity is not None  # required by such a graph
    return sparse(forward, o.layer, read(o.x), read(o.residual), forward.sparsity)


@computes(op.PlainLinear)
def _plain_linear(forward: ForwardContext, o: op.PlainLinear, read: Read) -> Floats:
    x, weight, bias = read(o.x), o.layer.need_array(f"{o.role}.weight"), o.layer.array(f"{o.role}.bias")
    if forward.observe and o.role == "ffn_gate_inp":
        forward.observe(o.layer.need(f"{o.role}.weight").name, x, 0, 1)
    product: Floats = x @ weight.reshape(-1, x.shape[1]).T
    return product if bias is None else np.add(product, bias, out=product)


@computes(op.Softcap)
def _softcap(forward: ForwardContext, o: op.Softcap, read: Read) -> Floats:
    return ops.softcap(np.ascontiguousarray(read.own(o.x)), o.cap)


@computes(op.Probabilities)
def _probabilities(forward: ForwardContext, o: op.Probabilities, read: Read) -> Floats:
    x: Floats = read(o.x)
    if o.scoring == "softmax":
        return ops.softmax(x)
    each = ops.sigmoid if o.scoring == "sigmoid" else ops.softplus
    scores = each(x.copy(), threads=forward.threads)
    return scores if o.scoring == "sigmoid" else np.sqrt(scores, out=scores)


@computes(op.BestGroups)
def _best_groups(forward: ForwardContext, o: op.BestGroups, read: Read) -> Floats:
    return experts.within_best_groups(read(o.x), o.groups, o.used, o.pairs)


@computes(op.TopExperts)
def _top_experts(forward: ForwardContext, o: op.TopExperts, read: Read) -> experts.Chosen:
    chosen = np.argsort(-read(o.x), axis=1, kind="stable")[:, : o.used]
    return chosen if o.size == 1 else chosen // o.size


@computes(op.ExpertsOfTokens)
def _experts_of_tokens(forward: ForwardContext, o: op.ExpertsOfTokens, read: Read) -> experts.Chosen:
    return experts.of_tokens(forward, o.layer, len(read(o.x)))


@computes(op.SparseMixer)
def _sparse_mixer(forward: ForwardContext, o: op.SparseMixer, read: Read) -> Any:
    return experts.sparse_mixer(read(o.x), o.used, o.jitter)[o.gives_weights]


@computes(op.ExpertWeights)
def _expert_weights(forward: ForwardContext, o: op.ExpertWeights, read: Read) -> Floats:
    return cast(Floats, np.take_along_axis(read(o.x), read(o.chosen), axis=1))


@computes(op.NormalizeWeights)
def _normalize_weights(forward: ForwardContext, o: op.NormalizeWeights, read: Read) -> Floats:
    x = read.own(o.x)
    x /= np.maximum(x.sum(axis=1, keepdims=True), experts.MIN_SUM)
    return x


@computes(op.ScaleByExpert)
def _scale_by_expert(forward: ForwardContext, o: op.ScaleByExpert, read: Read) -> Floats:
    x = read.own(o.x)
    x *= o.layer.need_array("ffn_down_exps.scale")[read(o.chosen)]
    return x


@computes(op.Experts)
def _experts(forward: ForwardContext, o: op.Experts, read: Read) -> Floats:
    return experts.add_experts(forward, o.layer, read(o.x), (read(o.chosen), read(o.weighted)), o.suffix)


@computes(op.Combine)
def _combine(forward: ForwardContext, o: op.Combine, read: Read) -> Floats:
    return o.function(read.own(o.routed), read(o.shared))


@computes(op.LayerInput)
def _layer_input(forward: ForwardContext, o: op.LayerInput, read: Read) -> Floats:
    return layer_input(forward, o.layer)


@computes(op.ScaleAndSkip)
def _scale_and_skip(forward: ForwardContext, o: op.ScaleAndSkip, read: Read) -> Floats:
    x, factor = read.own(o.x), o.layer.need_array("layer_output_scale.weight")
    if forward.embedded is None:
        return np.multiply(x, factor, out=x)
    first = 0 if len(x) == len(forward.embedded) else forward.first
    x += forward.from_position(first, forward.embedded) * factor
    return x


@computes(op.AddNgrams)
def _add_ngrams(forward: ForwardContext, o: op.AddNgrams, read: Read) -> Floats:
    x: Floats = read(o.x)
    return x + ngrams.ngrams(forward, o.layer, x)


@computes(op.Embed)
def _embed(forward: ForwardContext, o: op.Embed, read: Read) -> Floats:
    assert forward.tokens is not None  # set by the callers of whole graphs
    return embed(forward, forward.tokens)


@computes(op.Logits)
def _logits(forward: ForwardContext, o: op.Logits, read: Read) -> Floats:
    output, x = output_of(forward.network), read(o.x)
    return LazyLogits(x, output.weight, output.finish(forward.threads), forward.threads, forward.precision).float32()


__all__ = ["COMPUTE", "IN_MODULES", "Hook", "Read", "computed", "run"]
