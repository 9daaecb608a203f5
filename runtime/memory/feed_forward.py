"""Build the tensors of feed-forward nets: dense ones, and mixtures of experts."""

from __future__ import annotations

from . import nodes
from .builder import Build
from .nodes import Node

GLU = ("silu", "gelu", "gelu_tanh", "relu", "swiglu_oai")


def dense(b: Build, x: Node, il: int, suffix: str = "") -> Node:
    """Return a dense net, or a shared expert (suffix)."""
    up = b.product(f"ffn_up{suffix}", x, il)
    if b.has(f"ffn_gate{suffix}", il):
        made = activated(b, b.product(f"ffn_gate{suffix}", x, il), up, il, shared=True)
    elif b.model.architecture.block.gated:
        made = nodes.glu(up)
    else:
        made = activated(b, up, None, il)
    if b.has("ffn_sub_norm", il) and not suffix:
        made = b.norm(made, "ffn_sub_norm", il)
    return b.product(f"ffn_down{suffix}", made, il)


def activated(b: Build, gate: Node, up: Node | None, il: int, shared: bool = False) -> Node:
    """Return a gated unit, or an activation."""
    hparams = b.model.hparams
    limit = hparams.layers[il].net_limit if shared else hparams.layers[il].experts_limit
    if up is not None and limit > 0 and not b.model.architecture.block.clamps_gate_first:
        up = nodes.same("clamp", up)
        return nodes.mul(nodes.same("clamp", nodes.unary(gate)), up)
    if up is not None and hparams.activation in GLU:
        return nodes.glu(gate, up)
    made = nodes.unary(gate)
    if hparams.activation == "relu2":
        made = nodes.same("sqr", made)
    return made if up is None else nodes.mul(made, up)


def experts(b: Build, x: Node, il: int, logits: Node | None = None) -> Node:
    """Return the weighted sum of the chosen experts."""
    hparams = b.model.hparams
    used, count = hparams.layers[il].experts_used, b.model.number("expert_count")
    tokens, width = x.shape[1], x.shape[0]
    chosen, weights = _routed(b, x, il, logits, used, count)
    b.graph.expand(weights)
    x = nodes.reshape(x, width, 1, tokens)
    if b.model.architecture.name == "llama4":
        x = nodes.mul(nodes.repeat(x, width, used, tokens), weights)
    if b.has("ffn_gate_up_exps", il):
        both = _of_experts(b, "ffn_gate_up_exps", x, chosen, il)
        half = both.shape[0] // 2
        gate, up = (nodes.view(both, (half, *both.shape[1:3]), both.strides[1:3]) for _ in range(2))
        made = activated(b, gate, up, il)
    elif b.has("ffn_gate_exps", il):
        up = _of_experts(b, "ffn_up_exps", x, chosen, il)
        made = activated(b, _of_experts(b, "ffn_gate_exps", x, chosen, il), up, il)
    else:
        made = activated(b, _of_experts(b, "ffn_up_exps", x, chosen, il), None, il)
    made = _of_experts(b, "ffn_down_exps", made, chosen, il)
    if b.model.architecture.name != "llama4":
        made = nodes.mul(made, weights)
    b.graph.expand(made)
    parts = [nodes.view(made, (width_of(made), tokens), (made.strides[2],)) for _ in range(used)]
    b.expand(parts)
    total = parts[0]
    for part in parts[1:]:
        total = nodes.add(total, part)
        b.graph.expand(total)
    return nodes.cont(total) if used == 1 else total


def width_of(x: Node) -> int:
    """Return the length of a row."""
    return x.shape[0]


def _of_experts(b: Build, role: str, x: Node, chosen: Node, il: int) -> Node:
    """Return products with the chosen experts' matrices."""
    matrix = b.need(role, il)
    made = nodes.mul_mat_id(matrix, x, chosen)
    factor, bias = b.weight(f"{role}.scale", il), b.weight(f"{role}.bias", il)
    if factor is not None:
        count, tokens = factor.shape[0], x.shape[2]
        rows = nodes.get_rows(nodes.repeat(nodes.reshape(factor, 1, count, 1), 1, count, tokens), chosen)
        made = nodes.mul(made, rows)
    return made if bias is None else nodes.same("add_id", made, bias, chosen)


def _routed(b: Build, x: Node, il: int, logits: Node | None, used: int, count: int) -> tuple[Node, Node]:
    """Return the chosen experts and their weights."""
    hparams, tokens = b.model.hparams, x.shape[1]
    if logits is None:
        logits = nodes.mul_mat(b.need("ffn_gate_inp", il), x)
        if (bias := b.weight("ffn_gate_inp.bias", il)) is not None:
            logits = nodes.add(logits, bias)
    scoring = hparams.scoring
    if scoring == "softmax_of_top":
        scores = logits
    elif scoring == "sqrt_softplus":
        scores = nodes.same("sqrt", nodes.unary(logits))
    else:
        scores = nodes.same("soft_max", logits) if scoring == "softmax" else nodes.unary(logits)
    ranked = scores
    if (bias := b.weight("exp_probs_b.bias", il) or b.weight("exp_probs_b", il)) is not None:
        ranked = nodes.add(scores, bias)
    if b.model.architecture.name == "llama4":
        ranked = logits
    groups, groups_used = hparams.expert_groups, hparams.expert_groups_used
    if groups > 1 and tokens > 0:
        ranked = _in_groups(ranked, groups, groups_used)
    chosen = nodes.argsort_top(ranked, used)
    weights = nodes.get_rows(nodes.reshape(scores, 1, count, tokens), chosen)
    if scoring == "softmax_of_top":
        weights = nodes.reshape(nodes.same("soft_max", nodes.reshape(weights, used, tokens)), 1, used, tokens)
    if hparams.normalize_experts:
        flat = nodes.reshape(weights, used, tokens)
        total = nodes.same("clamp", nodes.sum_rows(flat))
        weights = nodes.reshape(nodes.same("div", flat, total), 1, used, tokens)
    if hparams.experts_scale not in (0.0, 1.0):
        weights = nodes.scale(weights)
    return chosen, weights


def _in_groups(ranked: Node, groups: int, used: int) -> Node:
    """Return scores without those of the groups that are not chosen."""
    count, tokens = ranked.shape[:2]
    each = count // groups
    grouped = nodes.reshape(ranked, each, groups, tokens)
    best = nodes.argsort_top(grouped, 2)
    best = nodes.get_rows(nodes.reshape(grouped, 1, each, groups, tokens), best)
    best = nodes.sum_rows(nodes.reshape(best, *best.shape[1:]))
    chosen = nodes.argsort_top(nodes.reshape(best, *best.shape[1:]), used)
    kept = nodes.get_rows(grouped, chosen)
    return nodes.reshape(nodes.set_rows(nodes.same("fill", grouped), kept, chosen), count, tokens)


def _beside_dense(b: Build, x: Node, il: int) -> Node:
    """Return the sum of a dense net and experts, each between norms of its own (Gemma 4). x: before all norms."""
    made = b.norm(dense(b, b.norm(x, "ffn_norm", il), il), "post_ffw_norm_1", il)
    normed = b.norm(x, "pre_ffw_norm_2", il)
    routed = nodes.mul(nodes.scale(nodes.rms_norm(x)), b.need("ffn_gate_inp.scale", il))
    logits = nodes.mul_mat(b.need("ffn_gate_inp", il), routed)
    others = b.norm(experts(b, normed, il, logits), "post_ffw_norm_2", il)
    return nodes.add(made, others)


def net(b: Build, x: Node, il: int) -> Node:
    """Return a layer's net with all its experts."""
    if not b.has("ffn_gate_inp", il):
        return dense(b, x, il)
    if b.has("pre_ffw_norm_2", il):
        return _beside_dense(b, x, il)
    if b.has("ffn_latent_down", il):
        made = nodes.mul_mat(b.need("ffn_latent_down", il), x)
        logits = nodes.mul_mat(b.need("ffn_gate_inp", il), x)
        made = nodes.mul_mat(b.need("ffn_latent_up", il), experts(b, made, il, logits))
    else:
        made = experts(b, x, il)
    if not b.has("ffn_up_shexp", il):
        return made
    shared = dense(b, x, il, "_shexp")
    if b.has("ffn_gate_inp_shexp", il):
        shared = nodes.mul(shared, nodes.unary(b.product("ffn_gate_inp_shexp", x, il)))
    return nodes.add(made, shared)
