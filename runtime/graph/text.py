"""The executor for texts: each operation over all tokens at once, in numpy and numba, one after the other."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from .. import altup, cycles, experts, hyper_connections, ngrams, ops, residuals, streams
from ..arrays import Floats
from ..compressed_attention import compressed_attention
from ..embedding import layer_input
from ..feed_forward import down_by_neuron, sparse
from ..latent_attention import attend_to_latents, attend_to_widened, per_head
from ..layer import Pass
from ..rope import apply_rope
from ..self_attention import attend_in_cache, attend_to_shared, head_norm, scaled_queries
from . import operations as op
from . import recurrent_text
from .builder import Graph
from .read import COMPUTE, Read, computes

Hook = Callable[[Floats], None]


def run(graph: Graph, forward: Pass, x: Floats, hooks: Mapping[int, Hook] | None = None) -> Any:
    """What the list gives for the input x (tokens, width), whose array stays as it is.

    hooks: by a value's number, called with what has been computed; it may be changed in place. Raises ModelError where
    a layer's output is not finite, with the layer's name.
    """
    read, hooks = Read(graph), hooks or {}
    checked = {value.number: f"blk.{index}." for index, value in graph.layer_outputs.items()}
    for number, node in enumerate(graph.nodes):
        read.number = number
        if isinstance(node.operation, op.Input):
            read.values[number] = x
        else:
            with forward.timed(node.kind):
                read.values[number] = COMPUTE[type(node.operation)](forward, node.operation, read)
        if number in checked:
            forward.finite(checked[number], read.values[number])
        if number in hooks:
            hooks[number](read.values[number])
        read.forget()
    return read.values[graph.output.number]


@computes(op.KeepRows)
def _keep_rows(forward: Pass, o: op.KeepRows, read: Read) -> Floats:
    x: Floats = read(o.x)
    return forward.from_position(forward.first, x) if forward.first else x


@computes(op.Linear)
def _linear(forward: Pass, o: op.Linear, read: Read) -> Floats:
    y = forward.project(o.layer, o.role, read.product_inputs(forward, o.x))
    return y.reshape(len(y), *o.shape())


@computes(op.Adapted)
def _adapted(forward: Pass, o: op.Adapted, read: Read) -> Floats:
    y = read.own(o.part)
    return forward.adapted(o.layer, o.role, read(o.x), y.reshape(len(y), -1)).reshape(y.shape)


@computes(op.Norm)
def _norm(forward: Pass, o: op.Norm, read: Read) -> Floats:
    return forward.norm(o.layer, o.role, read(o.x), o.eps)


@computes(op.PlainNorm)
def _plain_norm(forward: Pass, o: op.PlainNorm, read: Read) -> Floats:
    return ops.rms_norm(read(o.x), None, o.eps, forward.threads)


@computes(op.HeadNorm)
def _head_norm(forward: Pass, o: op.HeadNorm, read: Read) -> Floats:
    return head_norm(forward, o.layer, o.role, read(o.x))


@computes(op.Add)
def _add(forward: Pass, o: op.Add, read: Read) -> Floats:
    part = read.own(o.part)
    if o.scale != 1:
        part *= np.float32(o.scale)
    return np.add(read(o.x), part, out=part)


@computes(op.Scale)
def _scale(forward: Pass, o: op.Scale, read: Read) -> Floats:
    x = read.own(o.x)
    x *= np.float32(o.factor)
    return x


@computes(op.Columns)
def _columns(forward: Pass, o: op.Columns, read: Read) -> Floats:
    x: Floats = read(o.x)
    return np.ascontiguousarray(x[..., o.start : o.stop]).reshape(len(x), *o.shape())


@computes(op.Clamp)
def _clamp(forward: Pass, o: op.Clamp, read: Read) -> Floats:
    x = read.own(o.x)
    low = -o.limit if o.low is None else o.low
    return np.clip(x, np.float32(low), np.float32(o.limit), out=x)


@computes(op.Activate)
def _activate(forward: Pass, o: op.Activate, read: Read) -> Floats:
    x = read.own(o.x)
    return ops.xielu(x, *o.parameters) if o.activation == "xielu" else ops.activated(o.activation, x, forward.threads)


@computes(op.ScaleBy)
def _scale_by(forward: Pass, o: op.ScaleBy, read: Read) -> Floats:
    x, factors = read.own(o.x), o.layer.need_array(o.role)
    factors = np.abs(factors) if o.is_absolute else factors
    x *= factors.reshape(o.x.shape if factors.size == o.x.width else (-1, 1))
    return x


@computes(op.AddWeight)
def _add_weight(forward: Pass, o: op.AddWeight, read: Read) -> Floats:
    x = read.own(o.x)
    x += o.layer.need_array(o.role).reshape(o.x.shape)
    return x


@computes(op.Offset)
def _offset(forward: Pass, o: op.Offset, read: Read) -> Floats:
    x = read.own(o.x)
    x += np.float32(o.number)
    return x


@computes(op.Multiply)
def _multiply(forward: Pass, o: op.Multiply, read: Read) -> Floats:
    x = read.own(o.x)
    return np.multiply(x, read(o.y), out=x)


@computes(op.Reshape)
def _reshape(forward: Pass, o: op.Reshape, read: Read) -> Floats:
    x: Floats = read(o.x)
    return x.reshape(len(x), *o.size)


@computes(op.ExpertLinear)
def _expert_linear(forward: Pass, o: op.ExpertLinear, read: Read) -> Floats:
    return forward.project_expert(o.layer, o.role, read(o.x), o.number)


@computes(op.Gated)
def _gated(forward: Pass, o: op.Gated, read: Read) -> Floats:
    gate, up, threads = read.own(o.gate), read(o.up), forward.threads
    if o.activation == "situ":
        return ops.situ(gate, up.copy(), *o.bounds, threads)
    if o.clamps_both:
        function = ops.gated_of_clamped if o.clamps_gate_first else ops.gated_within
        return function(o.activation, gate, up.copy(), o.limit, threads)
    return ops.gated(o.activation, gate, up, o.limit, threads)


@computes(op.SparseGate)
def _sparse_gate(forward: Pass, o: op.SparseGate, read: Read) -> Floats:
    gate: Floats = read(o.x)
    least = gate.mean(axis=1, keepdims=True) + gate.std(axis=1, keepdims=True) * np.float32(o.deviations)
    return ops.relu(gate - least)


@computes(op.ScaleByGate)
def _scale_by_gate(forward: Pass, o: op.ScaleByGate, read: Read) -> Floats:
    mixed, gates = read.own(o.x), read.rows(o.gate)
    softplus = o.function == "softplus"
    gates = np.logaddexp(gates, np.float32(0)) if softplus else ops.sigmoid(gates.copy(), threads=forward.threads)
    if gates.shape == mixed.shape:
        return np.multiply(mixed, gates, out=mixed)
    each: Floats = mixed.reshape(*gates.shape, -1) * gates[:, :, None]  # one for each head
    return each.reshape(mixed.shape)


@computes(op.Rope)
def _rope(forward: Pass, o: op.Rope, read: Read) -> Floats:
    x = read.own(o.x)
    apply_rope(x, *forward.rope(o.own), forward.hyper.rope, forward.threads)
    return x


@computes(op.ScaleQueries)
def _scale_queries(forward: Pass, o: op.ScaleQueries, read: Read) -> Floats:
    return scaled_queries(forward, read.own(o.x), o.rotated)


@computes(op.Attention)
def _attention(forward: Pass, o: op.Attention, read: Read) -> Floats:
    return attend_in_cache(forward, o.layer, o.own, read(o.x), (read(o.q), read(o.k), read(o.v)))


@computes(op.SharedAttention)
def _shared_attention(forward: Pass, o: op.SharedAttention, read: Read) -> Floats:
    return attend_to_shared(forward, o.own, read(o.q))


@computes(op.PerHead)
def _per_head(forward: Pass, o: op.PerHead, read: Read) -> Floats:
    return per_head(forward, o.layer, o.role, read(o.x))


@computes(op.Concat)
def _concat(forward: Pass, o: op.Concat, read: Read) -> Floats:
    x, y = read(o.x), read(o.y)
    return np.concatenate((x, np.broadcast_to(y, (*x.shape[:-1], y.shape[-1]))), axis=-1)


@computes(op.LatentAttention)
def _latent_attention(forward: Pass, o: op.LatentAttention, read: Read) -> Floats:
    return attend_to_latents(forward, o.layer, read(o.x), read(o.low), read(o.q), read(o.k))


@computes(op.WidenedAttention)
def _widened_attention(forward: Pass, o: op.WidenedAttention, read: Read) -> Floats:
    return attend_to_widened(forward, o.layer, read(o.q), read(o.k), read(o.v))


@computes(op.CompressedAttention)
def _compressed_attention(forward: Pass, o: op.CompressedAttention, read: Read) -> Floats:
    return compressed_attention(forward, o.layer, read(o.x))


@computes(op.DownByNeuron)
def _down_by_neuron(forward: Pass, o: op.DownByNeuron, read: Read) -> Floats:
    return down_by_neuron(forward, o.layer, read(o.x))


@computes(op.PredictedNet)
def _predicted_net(forward: Pass, o: op.PredictedNet, read: Read) -> Floats:
    assert forward.sparsity is not None  # what such a list is built for
    return sparse(forward, o.layer, read(o.x), read(o.residual), forward.sparsity)


@computes(op.Route)
def _route(forward: Pass, o: op.Route, read: Read) -> Any:
    return experts.route(forward, o.layer, read(o.x))


@computes(op.Experts)
def _experts(forward: Pass, o: op.Experts, read: Read) -> Floats:
    return experts.add_experts(forward, o.layer, read(o.x), read(o.routing), o.suffix)


@computes(op.GroupExperts)
def _group_experts(forward: Pass, o: op.GroupExperts, read: Read) -> Floats:
    return experts.adjugate_experts(forward, o.layer, read(o.x), read(o.router_input))


@computes(op.SharedExpertGate)
def _shared_expert_gate(forward: Pass, o: op.SharedExpertGate, read: Read) -> Floats:
    shared, x = read.own(o.x), read(o.net_input)
    gate = o.layer.need_array("ffn_gate_inp_shexp.weight")
    shared *= ops.sigmoid(x @ gate.reshape(-1, x.shape[1]).T, threads=forward.threads)
    return shared


@computes(op.Combine)
def _combine(forward: Pass, o: op.Combine, read: Read) -> Floats:
    return o.function(read.own(o.routed), read(o.shared))


@computes(op.LayerInput)
def _layer_input(forward: Pass, o: op.LayerInput, read: Read) -> Floats:
    return layer_input(forward, o.layer, read(o.x))


@computes(op.ScaleAndSkip)
def _scale_and_skip(forward: Pass, o: op.ScaleAndSkip, read: Read) -> Floats:
    x, factor = read.own(o.x), o.layer.need_array("layer_output_scale.weight")
    if forward.embedded is None:
        return np.multiply(x, factor, out=x)
    first = 0 if len(x) == len(forward.embedded) else forward.first
    x += forward.from_position(first, forward.embedded) * factor
    return x


@computes(op.BeginStreams)
def _begin_streams(forward: Pass, o: op.BeginStreams, read: Read) -> Floats:
    return streams.begun(forward, read(o.x))


@computes(op.EndStreams)
def _end_streams(forward: Pass, o: op.EndStreams, read: Read) -> Floats:
    forward.streams = read(o.x) if streams.has_streams(forward) else None
    return streams.ended(forward, read(o.x))


@computes(op.AddNgrams)
def _add_ngrams(forward: Pass, o: op.AddNgrams, read: Read) -> Floats:
    x: Floats = read(o.x)
    return x + ngrams.ngrams(forward, o.layer, x)


@computes(op.BeginCycles)
def _begin_cycles(forward: Pass, o: op.BeginCycles, read: Read) -> Floats:
    return cycles.begun(forward, read(o.x))


@computes(op.ReadState)
def _read_state(forward: Pass, o: op.ReadState, read: Read) -> Floats:
    x: Floats = read(o.x)
    return x[:, : o.size].copy()


@computes(op.NextState)
def _next_state(forward: Pass, o: op.NextState, read: Read) -> Floats:
    x: Floats = read(o.x)
    assert o.given is not None
    return cycles.passed(forward, o.layer, read(o.given), x[:, forward.hyper.width :])


@computes(op.ReadStreams)
def _read_streams(forward: Pass, o: op.ReadStreams, read: Read) -> Any:
    return streams.gated_mean(forward, o.layer, o.part, read(o.x))


@computes(op.FirstOf)
def _first_of(forward: Pass, o: op.FirstOf, read: Read) -> Floats:
    return cast(Floats, read(o.x)[0])


@computes(op.WriteStreams)
def _write_streams(forward: Pass, o: op.WriteStreams, read: Read) -> Floats:
    assert o.read is not None
    assert o.given is not None
    return streams.injected(forward, o.layer, o.part, read(o.x), read(o.read)[1], read(o.given))


@computes(op.ReadMixed)
def _read_mixed(forward: Pass, o: op.ReadMixed, read: Read) -> Any:
    return hyper_connections.read(forward, o.layer, o.part, read(o.x))


@computes(op.WriteMixed)
def _write_mixed(forward: Pass, o: op.WriteMixed, read: Read) -> Floats:
    assert o.given is not None
    return cast(Floats, read(o.x)[1](read(o.given)))


@computes(op.ReadResiduals)
def _read_residuals(forward: Pass, o: op.ReadResiduals, read: Read) -> Floats:
    return residuals.read(forward, o.layer, o.role, read(o.x))


@computes(op.LeaveResidual)
def _leave_residual(forward: Pass, o: op.LeaveResidual, read: Read) -> Floats:
    return residuals.left(forward, o.layer, read(o.x))


@computes(op.AddHidden)
def _add_hidden(forward: Pass, o: op.AddHidden, read: Read) -> Floats:
    assert o.given is not None
    return residuals.added(forward, read(o.x), read(o.given))


@computes(op.BeginCopies)
def _begin_copies(forward: Pass, o: op.BeginCopies, read: Read) -> Floats:
    return altup.begin(forward, read(o.x))


@computes(op.EndCopies)
def _end_copies(forward: Pass, o: op.EndCopies, read: Read) -> Floats:
    return altup.end(forward, read(o.x))


@computes(op.PredictCopies)
def _predict_copies(forward: Pass, o: op.PredictCopies, read: Read) -> Floats:
    return altup.predicted(forward, o.layer, read(o.x))


@computes(op.OneCopy)
def _one_copy(forward: Pass, o: op.OneCopy, read: Read) -> Floats:
    return cast(Floats, read(o.x)[o.number])


@computes(op.CorrectCopies)
def _correct_copies(forward: Pass, o: op.CorrectCopies, read: Read) -> Floats:
    return altup.corrected(forward, o.layer, read(o.predicted), read(o.before), read(o.after))


__all__ = ["COMPUTE", "Hook", "Read", "recurrent_text", "run"]
