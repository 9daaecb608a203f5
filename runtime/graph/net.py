"""Feed-forward nets as operations: dense ones, mixtures of experts, and both together."""

from collections.abc import Sequence

from ..layer import Layer
from . import operations as op
from .builder import Builder, has
from .operations import Value

ROUTING = "experts: routing and sums"


def net(b: Builder, layer: Layer, x: Value, residual: Value, layer_input: Value | None = None) -> Value:
    """Build the feed-forward net of a layer over x. residual: the input of the norm that gave x. layer_input: which a
    router may read.
    """
    net_type = b.network.layer_type(layer).net
    if has(layer, "post_ffw_norm_1"):
        one = b.norm(layer, "post_ffw_norm_1", dense(b, layer, x), "ffn_post_norm_1")
        if net_type == "dense":
            return one
        other = experts(b, layer, b.norm(layer, "pre_ffw_norm_2", residual, "ffn_pre_norm_2"), residual)
        return b.add("ffn_out", op.Add(one, b.norm(layer, "post_ffw_norm_2", other, "ffn_post_norm_2")))
    if net_type != "dense":
        return _experts_and_net(b, layer, x, x if layer_input is None else layer_input, net_type == "experts+dense")
    if b.predicts:
        return b.add("ffn_out", op.PredictedNet(x, residual, layer))
    return dense(b, layer, x)


def _experts_and_net(b: Builder, layer: Layer, x: Value, router_input: Value, both: bool) -> Value:
    """Build experts, and the net next to them if there is one; those of Arctic read the layer's input."""
    if has(layer, "ffn_norm_exps"):
        given = b.norm(layer, "ffn_norm_exps", router_input)
        return b.add("ffn_out", op.Add(experts(b, layer, given, given), dense(b, layer, x)))
    routed = experts(b, layer, x, router_input)
    if not both:
        return routed
    return b.add("ffn_out", op.Combine(routed, dense(b, layer, x), b.network.block.add_shared_expert))


def experts(b: Builder, layer: Layer, x: Value, router_input: Value) -> Value:
    """Return the output of routed and shared experts together."""
    start = len(b.nodes)
    logits, chosen, weights = route(b, layer, router_input)
    narrow = next((role for role in ("ffn_latent", "ffn_routed") if has(layer, f"{role}_down")), "")
    latent = b.linear(layer, f"{narrow}_down", x) if narrow else x
    out = b.add("ffn_moe_out", op.Experts(latent, chosen, weights, layer))
    if narrow:
        out = b.linear(layer, f"{narrow}_up", b.norm(layer, "ffn_routed_norm", out))
    if has(layer, "ffn_up_chexps"):
        out = b.add("ffn_adj_moe_out", op.Add(out, _group_experts(b, layer, out, logits)))
    if has(layer, "ffn_up_shexp"):
        shared = dense(b, layer, x, "_shexp")
        if has(layer, "ffn_gate_inp_shexp"):
            with b.counted_as(ROUTING):
                gate = b.add("shared_expert_gate", op.PlainLinear(x, layer, "ffn_gate_inp_shexp"))
                shared = b.add("ffn_shexp_out", op.ScaleByGate(shared, gate))
        out = b.add("ffn_out", op.Combine(out, shared, b.network.block.add_shared_expert))
    return b.enclose("experts", layer, start, (x, router_input), out)


def route(b: Builder, layer: Layer, x: Value) -> tuple[Value, Value, Value]:
    """Return the router's logits, the experts chosen for each token of x, and their weights."""
    hparams, used = b.network.hparams, b.numbers(layer).experts_used
    with b.counted_as(ROUTING):
        if "ffn_gate_inp.scale" in layer:
            x = b.norm(layer, "ffn_gate_inp.scale", x, "ffn_moe_router_norm")
            x = b.add("ffn_moe_router_scaled", op.Scale(x, x.width**-0.5))
        logits = scores = b.add("ffn_moe_logits", op.PlainLinear(x, layer, "ffn_gate_inp"))
        if hparams.router_softcap:
            logits = scores = b.add("ffn_moe_logits_capped", op.Softcap(logits, hparams.router_softcap))
        if hparams.scoring == "sparsemixer":
            chosen = b.add("ffn_moe_topk", op.SparseMixer(logits, used, hparams.router_jitter))
            mixed = op.SparseMixer(logits, used, hparams.router_jitter, gives_weights=True)
            return logits, chosen, b.add("ffn_moe_weights", mixed)
        if hparams.scoring in ("softmax", "sigmoid", "sqrt_softplus"):
            scores = b.add("ffn_moe_probs", op.Probabilities(logits, hparams.scoring))
        chosen = _chosen(b, layer, scores, used)
        return logits, chosen, _weights(b, layer, scores, chosen)


def _chosen(b: Builder, layer: Layer, scores: Value, used: int) -> Value:
    hparams, ranked = b.network.hparams, scores
    if "ffn_gate_tid2eid.weight" in layer:
        return b.add("ffn_moe_topk", op.ExpertsOfTokens(scores, layer, used))
    correction = next((role for role in ("exp_probs_b.bias", "exp_probs_b") if role in layer), "")
    if correction:
        ranked = b.add("ffn_moe_probs_biased", op.AddWeight(scores, layer, correction))
    if hparams.expert_groups > hparams.expert_groups_used:
        groups = hparams.expert_groups, hparams.expert_groups_used
        ranked = b.add("ffn_moe_probs_masked", op.BestGroups(ranked, *groups, pairs=bool(correction)))
    return b.add("ffn_moe_topk", op.TopExperts(ranked, used))


def _weights(b: Builder, layer: Layer, scores: Value, chosen: Value) -> Value:
    hparams, weights = b.network.hparams, b.add("ffn_moe_weights", op.ExpertWeights(scores, chosen))
    if hparams.scoring == "softmax_of_top":
        weights = b.add("ffn_moe_weights_softmax", op.Probabilities(weights, "softmax"))
    elif hparams.normalize_experts:
        weights = b.add("ffn_moe_weights_norm", op.NormalizeWeights(weights))
    if "ffn_down_exps.scale" in layer:
        weights = b.add("ffn_moe_weights_of_expert", op.ScaleByExpert(weights, chosen, layer))
    return b.scaled(weights, hparams.experts_scale, "ffn_moe_weights_scaled")


def _group_experts(b: Builder, layer: Layer, x: Value, logits: Value) -> Value:
    """Return the output of experts shared by groups of others (Grove MoE) for x, the others' output.

    Source: llama.cpp's graph of Grove MoE, including its choice of weights: those of the experts with a group's number.
    """
    keys, count = b.network.keys, layer.need("ffn_up_chexps.weight").shape[0]
    used, size = min(b.numbers(layer).experts_used, count), int(keys.need("experts_per_group"))
    with b.counted_as(ROUTING):
        scores = b.add("ffn_adj_moe_probs", op.Probabilities(logits, "softmax"))
        chosen = b.add("ffn_adj_moe_topk", op.TopExperts(scores, used, size))
        weights = b.add("ffn_adj_moe_weights", op.ExpertWeights(scores, chosen))
        weights = b.add("ffn_adj_moe_weights_norm", op.NormalizeWeights(weights))
        out = b.add("ffn_adj_moe", op.Experts(x, chosen, weights, layer, "chexps"))
        return b.add("ffn_adj_moe_scaled", op.Scale(out, float(keys.need("expert_group_scale"))))


def dense(b: Builder, layer: Layer, x: Value, suffix: str = "") -> Value:
    """Return down(activation(gate x) * up x). suffix: "_shexp" for a shared expert."""
    hidden = b.norm_if_there(layer, "ffn_sub_norm", _hidden(b, layer, x, suffix))
    if "ffn_down_t.weight" in layer:
        return b.add("ffn_out", op.DownByNeuron(hidden, layer))
    return b.linear(layer, f"ffn_down{suffix}", hidden, "ffn_out" if not suffix else "ffn_shexp")


_GATED_UNITS = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu", "relu": "reglu"}  # as llama.cpp names them


def _hidden(b: Builder, layer: Layer, x: Value, suffix: str) -> Value:
    hparams, block, own = b.network.hparams, b.network.block, b.numbers(layer)
    up = b.linear(layer, f"ffn_up{suffix}", x)
    name = f"ffn_{'gelu' if hparams.activation == 'gelu_tanh' else hparams.activation}{suffix}"
    if hparams.activation == "xielu":
        return b.add(name, op.Activate(up, "xielu", tuple(hparams.xielu[layer.index])))
    if not block.gated:
        return b.add(name, op.Activate(up, hparams.activation))
    if f"ffn_gate{suffix}.weight" in layer:
        gate = b.linear(layer, f"ffn_gate{suffix}", x)
    else:  # one fused projection, the gate first
        fused, half = up, up.width // 2
        gate = b.add(f"ffn_gate{suffix}", op.Columns(fused, 0, half))
        up = b.add(f"ffn_up_half{suffix}", op.Columns(fused, half, up.width))
    if own.sparsity is not None:
        gate = b.add(f"ffn_gate_sparse{suffix}", op.SparseGate(gate, own.sparsity))
    limit = own.net_limit or hparams.activation_limit
    return b.add(
        f"ffn_{_GATED_UNITS.get(hparams.activation, hparams.activation)}{suffix}",
        op.Gated(
            gate,
            up,
            hparams.activation,
            limit,
            clamps_gate_first=block.clamps_gate_first,
            clamps_both=bool(own.net_limit),
            bounds=_bounds(hparams.situ),
        ),
    )


def _bounds(situ: Sequence[float]) -> tuple[float, float]:
    return situ[0], situ[1]
