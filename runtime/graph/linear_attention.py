"""Linear attention as operations: a layer's memory is a matrix for each head.

Source: transformers `models/qwen3_next/modeling_qwen3_next.py` (gated delta nets), `models/kimi_linear/` and
`models/bailing_hybrid/` (Kimi's delta attention), `models/minimax/` (lightning attention).
"""

from ..layer import Layer
from ..mixers.recurrence import LIGHTNING_EPS, lightning_rates
from . import operations as op
from . import recurrent_operations as rec
from .builder import Builder
from .operations import Value

EPS = 1e-6  # added to the squared length of a key or a query


def gated_delta(b: Builder, layer: Layer, x: Value) -> Value:
    """Build a gated delta net (Qwen3-Next, Qwen3.5)."""
    keys, start = b.network.keys, len(b.nodes)
    size, groups = int(keys.need("ssm.state_size")), int(keys.need("ssm.group_count"))
    heads, inner = int(keys.need("ssm.time_step_rank")), int(keys.need("ssm.inner_size"))
    mixed = b.linear(layer, "attn_qkv", x, "linear_attn_qkv_mixed")
    mixed = b.add("conv_output_raw", rec.Convolution(mixed, layer, ("ssm_conv1d",)))
    mixed = b.add("conv_output_silu", op.Activate(mixed, b.network.hparams.activation))
    wide, per_key, by_key = groups * size, heads // groups, "ssm_ba.weight" in layer
    if by_key:  # Qwen3-Next: heads that share a key are neighbours, with one projection by key
        both = b.linear(layer, "ssm_ba", x, "linear_attn_mixed_ba", (groups, 2 * per_key))
        beta = b.add("b", op.Columns(both, 0, per_key, (heads,)))
        alpha = b.add("a", op.Columns(both, per_key, 2 * per_key, (heads,)))
    else:  # Qwen3.5: keys take turns
        beta, alpha = (b.linear(layer, role, x, name) for role, name in (("ssm_beta", "b"), ("ssm_alpha", "a")))
    q, k = (
        _unit(b, name, b.add(f"{name}_conv", op.Columns(mixed, at, at + wide, (groups, size))))
        for name, at in (("q", 0), ("k", wide))
    )
    q, k = (
        b.add(f"{name}_conv_predelta", rec.RepeatHeads(part, heads, not by_key)) for name, part in (("q", q), ("k", k))
    )
    q = b.add("q_scaled", op.Scale(q, size**-0.5))
    v = b.add("v_conv", op.Columns(mixed, 2 * wide, mixed.width, (heads, inner // heads)))
    alpha = b.add("a_softplus", op.Activate(b.add("a_biased", op.AddWeight(alpha, layer, "ssm_dt.bias")), "softplus"))
    decay = b.add("gate_exp", op.Activate(b.add("gate", op.ScaleBy(alpha, layer, "ssm_a")), "exp"))
    beta = b.add("beta_sigmoid", op.Activate(beta, "sigmoid"))
    y = b.norm(layer, "ssm_norm", b.add("attn_output", rec.DeltaRule(v, layer, q, k, decay, beta)), "attn_out_norm")
    y = b.add("final_output", op.Reshape(y, (inner,)))
    gate = b.linear(layer, "attn_gate", x, "z")
    sigmoid = b.network.block.delta_gate == "sigmoid"
    y = b.add("attn_gated", op.ScaleByGate(y, gate) if sigmoid else op.Gated(gate, y, "silu"))
    return b.enclose("gated delta", layer, start, (x,), b.linear(layer, "ssm_out", y, "linear_attn_out"))


def kimi_delta(b: Builder, layer: Layer, x: Value) -> Value:
    """Build Kimi's delta attention (KDA): every channel of a key has its own decay."""
    keys, start, heads = b.network.keys, len(b.nodes), b.numbers(layer).heads
    size = int(keys.need("kda.head_dim"))
    q, k, v = (b.linear(layer, f"attn_{name}", x, f"{name.upper()}cur") for name in "qkv")
    mixed = b.add("qkv_mixed", op.Concat(b.add("qk_mixed", op.Concat(q, k)), v))
    taps = tuple(f"ssm_conv1d_{name}" for name in "qkv")
    mixed = b.add("conv_output_raw", rec.Convolution(mixed, layer, taps))
    activation = "silu" if b.network.hparams.activation == "situ" else b.network.hparams.activation
    mixed, wide = b.add("conv_output_silu", op.Activate(mixed, activation)), heads * size
    q, k, v = (
        b.add(f"{name}_conv", op.Columns(mixed, i * wide, i * wide + wide, (heads, size)))
        for i, name in enumerate("qkv")
    )
    q, k = b.add("q_scaled", op.Scale(_unit(b, "q", q), size**-0.5)), _unit(b, "k", k)
    steps = b.add("g1_biased", op.AddWeight(_narrowed(b, layer, "ssm_f", x, "g1"), layer, "ssm_dt.bias"))
    decay = _channel_decay(b, layer, steps, (heads, size))
    beta = b.add("kda_beta", op.Activate(b.linear(layer, "ssm_beta", x, "b"), "sigmoid"))
    y = b.norm(layer, "ssm_norm", b.add("attn_output", rec.DeltaRule(v, layer, q, k, decay, beta)), "kda_normed")
    y = b.add("kda_normed_view", op.Reshape(y, (wide,)))
    y = b.add("kda_gated", op.ScaleByGate(y, _narrowed(b, layer, "ssm_g", x, "g2")))
    return b.enclose("kimi delta", layer, start, (x,), b.linear(layer, "attn_output", y, "kda_out"))


def _channel_decay(b: Builder, layer: Layer, steps: Value, heads: tuple[int, int]) -> Value:
    """Return exp(a softplus(steps)), or exp(bound sigmoid(|a| steps)) if the file has a bound."""
    bound = b.network.keys.get("kda.gate_lower_bound")
    if bound is None:
        steps = b.add("g1_heads", op.Reshape(b.add("g1_softplus", op.Activate(steps, "softplus")), heads))
        scaled = b.add("kda_g1", op.ScaleBy(steps, layer, "ssm_a"))
    else:  # files disagree about the sign of `a`
        scaled = b.add(
            "g1_scaled", op.ScaleBy(b.add("g1_heads", op.Reshape(steps, heads)), layer, "ssm_a", is_absolute=True)
        )
        scaled = b.add("kda_g1", op.Scale(b.add("g1_sigmoid", op.Activate(scaled, "sigmoid")), float(bound)))
    return b.add("kda_g1_exp", op.Activate(scaled, "exp"))


def lightning(b: Builder, layer: Layer, x: Value) -> Value:
    """Build lightning attention (MiniMax Text-01, M1): the decay depends on the head and the layer."""
    own, start = b.numbers(layer), len(b.nodes)
    heads, size = own.heads, own.key_width
    mixed = b.linear(layer, "attn_qkv", x, "QKVcur", (heads, 3 * size))
    mixed = b.add("QKVcur_silu", op.Activate(mixed, b.network.hparams.activation))
    q, k, v = (b.add(f"{n}cur", op.Columns(mixed, i * size, i * size + size)) for i, n in enumerate("QKV"))
    rates = lightning_rates(layer.index, len(b.network.hparams.layers), heads)
    y = b.add("qkv", rec.LightningScan(v, layer, q, k, tuple(map(float, rates))))
    y = b.norm(layer, "attn_norm_2", b.add("qkv_view", op.Reshape(y, (heads * size,))), "qkv_norm", LIGHTNING_EPS)
    y = b.add("attn_gated", op.ScaleByGate(y, b.linear(layer, "attn_gate", x, "g")))
    return b.enclose("lightning", layer, start, (x,), b.linear(layer, "attn_output", y, "attn_out"))


def _unit(b: Builder, name: str, x: Value) -> Value:
    return b.add(f"{name}_l2_norm", rec.L2Norm(x, EPS))


def _narrowed(b: Builder, layer: Layer, role: str, x: Value, name: str) -> Value:
    """Return a projection by one matrix, or by two with a low rank in between."""
    if f"{role}.weight" in layer:
        return b.linear(layer, role, x, name)
    narrow = b.linear(layer, f"{role}_a", x, f"{name}_a")
    return b.linear(layer, f"{role}_b", narrow, name) if f"{role}_b.weight" in layer else narrow
