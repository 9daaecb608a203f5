"""RWKV 6 and 7 as operations: a matrix for each head, and the previous token.

Every projection reads its own mixture of a token and the one before it. Source: Peng et al. 2024, "Eagle and Finch";
Peng et al. 2025, "RWKV-7 Goose"; llama.cpp for the file's layout.
"""

import math

from ..layer import Layer
from . import operations as op
from . import recurrent_operations as rec
from .builder import Builder
from .operations import Value

HEAD_EPS = 64e-5  # of the norm of a head's output, whatever the model's is
MIN_LENGTH = 1e-12  # of a key, as a divisor
SLOWEST = -math.exp(-0.5)  # the logarithm of the minimum factor of RWKV 7's states


def rwkv_layer(b: Builder, layer: Layer, x: Value) -> Value:
    """Build a layer whose net reads the previous token, too. Some files halve the output every few layers, which keeps
    16-bit numbers in range.
    """
    given_x, start = x, len(b.nodes)
    with b.counted_as("recurrence and convolution"):
        x = b.add("ffn_inp", op.Add(x, time_mix(b, layer, b.norm(layer, "attn_norm", x))))
        given = channel_mix(b, layer, b.norm(layer, "attn_norm_2", x, "ffn_norm"))
        x = b.add("l_out", op.Add(b.kept(x), given))
        period = int(b.network.keys.get("rescale_every_n_layers"))
        x = b.add("l_out_halved", op.Scale(x, 0.5)) if period and (layer.index + 1) % period == 0 else x
    return b.enclose("rwkv layer", layer, start, (given_x,), x)


def channel_mix(b: Builder, layer: Layer, x: Value) -> Value:
    """Build the net, for the rows that continue."""
    start, difference = len(b.nodes), b.add("channel_mix_sx", rec.TokenShift(x, layer, 2))
    given = x
    x, difference = b.kept(x), b.kept(difference)
    xk = b.add("channel_mix_xk", rec.Lerp(x, layer, difference, "channel_mix_lerp_k"))
    k = b.add("channel_mix_k", op.Activate(b.linear(layer, "channel_mix_key", xk), "relu2"))
    out = b.linear(layer, "channel_mix_value", k, "channel_mix_kv")
    if "channel_mix_receptance.weight" in layer:
        xr = b.add("channel_mix_xr", rec.Lerp(x, layer, difference, "channel_mix_lerp_r"))
        out = b.add("ffn_out", op.ScaleByGate(out, b.linear(layer, "channel_mix_receptance", xr)))
    return b.enclose("channel mix", layer, start, (given,), out)


def time_mix(b: Builder, layer: Layer, x: Value) -> Value:
    """Return the layer's mix of earlier tokens."""
    start, size = len(b.nodes), int(b.network.keys.need("wkv.head_size"))
    difference = b.add("time_mix_sx", rec.TokenShift(x, layer))
    mix = _time_mix7 if b.network.layer_type(layer).mixer == "rwkv7" else _time_mix6
    y = mix(b, layer, x, difference, size)
    return b.enclose("time mix", layer, start, (x,), b.linear(layer, "time_mix_output", y, "time_mix_out"))


def _time_mix7(b: Builder, layer: Layer, x: Value, difference: Value, size: int) -> Value:
    """Build RWKV 7's time mix: the state's answer to a key is partly removed from it, channel by channel."""
    fused = "time_mix_lerp_fused"
    xr, xw, xk, xv, xa = (
        b.add(f"time_mix_x{name}", rec.Lerp(x, layer, difference, fused, i)) for i, name in enumerate("rwkva")
    )
    r = _heads(b, "time_mix_r_heads", b.linear(layer, "time_mix_receptance", xr, "time_mix_r"), size)
    k, v = b.linear(layer, "time_mix_key", xk, "time_mix_k"), b.linear(layer, "time_mix_value", xv, "time_mix_v")
    w = b.add("time_mix_w_sigmoid", op.Activate(_narrowed(b, layer, "w", xw, "tanh"), "sigmoid"))
    w = b.add("time_mix_w_exp", op.Activate(b.add("time_mix_w_scaled", op.Scale(w, SLOWEST)), "exp"))
    a = b.add("time_mix_a_sigmoid", op.Activate(_narrowed(b, layer, "a", xa), "sigmoid"))
    if layer.index == 0:
        v = b.add("time_mix_v_first", rec.KeepValues(v, layer))
    else:
        share = b.add("time_mix_v_sigmoid", op.Activate(_narrowed(b, layer, "v", xv), "sigmoid"))
        v = b.add("time_mix_v_mixed", rec.MixValues(v, layer, share))
    kk = _heads(b, "time_mix_kk_heads", b.add("time_mix_kk", op.ScaleBy(k, layer, "time_mix_k_k.weight")), size)
    kk = b.add("time_mix_kk_l2_norm", rec.L2Norm(kk, MIN_LENGTH, eps_is_minimum=True))
    rate = b.add("time_mix_ka", op.ScaleBy(b.add("time_mix_a_less", op.Offset(a, -1.0)), layer, "time_mix_k_a.weight"))
    k = b.add("time_mix_k_rated", op.Multiply(b.add("time_mix_k_rate", op.Offset(rate, 1.0)), k))
    k, v, w, a = (_heads(b, f"time_mix_{n}_heads", part, size) for n, part in zip("kvwa", (k, v, w, a), strict=True))
    removed, added = b.add("time_mix_kk_neg", op.Scale(kk, -1.0)), b.add("time_mix_kka", op.Multiply(kk, a))
    y = _head_norm(b, layer, b.add("wkv_output", rec.Wkv7(v, layer, r, w, k, removed, added)))
    y = b.add("time_mix_y", op.Add(y, b.add("time_mix_rk", rec.CurrentTokenBonus(v, layer, r, k, "time_mix_r_k"))))
    y = b.add("time_mix_y_flat", op.Reshape(y, (x.width,)))
    if "time_mix_g1.weight" in layer:
        xg = b.add("time_mix_xg", rec.Lerp(x, layer, difference, fused, 5))
        gate = b.add("time_mix_g_sigmoid", op.Activate(b.linear(layer, "time_mix_g1", xg), "sigmoid"))
        y = b.add("time_mix_gated", op.Multiply(y, b.linear(layer, "time_mix_g2", gate, "time_mix_g")))
    return y


def _time_mix6(b: Builder, layer: Layer, x: Value, difference: Value, size: int) -> Value:
    """Build RWKV 6's time mix: the mixture with the previous token and the state's decay depend on the token.

    Layers converted from Qwen (without `time_mix_first`) read the state after the current token, without a norm.
    """
    xw, xk, xv, xr, xg = _mixed_by_token(b, layer, x, difference)
    r, k, v = (
        _heads(b, f"{name}_heads", b.linear(layer, role, part, name), size)
        for name, role, part in (
            ("time_mix_r", "time_mix_receptance", xr),
            ("time_mix_k", "time_mix_key", xk),
            ("time_mix_v", "time_mix_value", xv),
        )
    )
    gate = b.linear(layer, "time_mix_gate", xg, "time_mix_g")
    w = b.add("time_mix_w_tanh", op.Activate(b.linear(layer, "time_mix_decay_w1", xw), "tanh"))
    w = b.add("time_mix_w", op.AddWeight(b.linear(layer, "time_mix_decay_w2", w), layer, "time_mix_decay.weight"))
    w = b.add("time_mix_w_neg", op.Scale(b.add("time_mix_w_exp", op.Activate(w, "exp")), -1.0))
    w = _heads(b, "time_mix_w_heads", b.add("time_mix_w_exp_exp", op.Activate(w, "exp")), size)
    if k.shape != r.shape:
        k, v = (b.add(f"time_mix_{n}_all", rec.RepeatHeads(each, r.shape[0])) for n, each in (("k", k), ("v", v)))
    if "time_mix_first.weight" in layer:
        y, own = rec.Wkv(v, layer, r, k, w), rec.CurrentTokenBonus(v, layer, r, k, "time_mix_first")
        both = b.add("time_mix_y", op.Add(b.add("wkv_output", y), b.add("time_mix_rk", own)))
        normed = b.add("time_mix_y_flat", op.Reshape(_head_norm(b, layer, both), (r.width,)))
        return b.add("time_mix_gated", op.Gated(gate, normed, "silu"))
    rest = b.add("time_mix_w_rest", op.Offset(b.add("time_mix_w_negative", op.Scale(w, -1.0)), 1.0))
    k = b.add("time_mix_k_rest", op.Multiply(rest, k))
    again = b.add("time_mix_rw", op.Multiply(r, w))  # reads what has already decayed once more
    read, own = b.add("wkv_output", rec.Wkv(v, layer, again, k, w)), rec.CurrentTokenBonus(v, layer, r, k, "")
    both = b.add("time_mix_y", op.Add(read, b.add("time_mix_rk", own)))
    both = b.add("time_mix_y_flat", op.Reshape(b.add("time_mix_y_scaled", op.Scale(both, size**-0.5)), (r.width,)))
    return b.add("time_mix_gated", op.ScaleByGate(both, gate))


def _mixed_by_token(b: Builder, layer: Layer, x: Value, difference: Value) -> list[Value]:
    """Return the inputs of five projections: a low-rank net of the token adds to the share of the difference."""
    mixed = b.add("time_mix_xxx", rec.Lerp(x, layer, difference, "time_mix_lerp_x"))
    inner = b.add("time_mix_w1_tanh", op.Activate(b.linear(layer, "time_mix_w1", mixed), "tanh"))
    rank, inputs, fused = inner.width // 5, [], "time_mix_lerp_fused.weight" in layer
    for i, name in enumerate("wkvrg"):  # older files store shares one by one
        part = b.add(f"time_mix_w1_{name}", op.Columns(inner, i * rank, i * rank + rank))
        more = b.add(f"time_mix_m{name}", op.ExpertLinear(part, layer, "time_mix_w2", i))
        role, row = ("time_mix_lerp_fused", i) if fused else (f"time_mix_lerp_{name}", 0)
        inputs.append(b.add(f"time_mix_x{name}", rec.Lerp(x, layer, difference, role, row, more)))
    return inputs


def _narrowed(b: Builder, layer: Layer, name: str, x: Value, between: str = "") -> Value:
    """Return the pair of low-rank matrices of this type, with a bias."""
    inner = b.linear(layer, f"time_mix_{name}1", x)
    if between:
        inner = b.add(f"time_mix_{name}_{between}", op.Activate(inner, between))
    wide = b.linear(layer, f"time_mix_{name}2", inner)
    return b.add(f"time_mix_{name}_biased", op.AddWeight(wide, layer, f"time_mix_{name}0.weight"))


def _heads(b: Builder, name: str, x: Value, size: int) -> Value:
    return b.add(name, op.Reshape(x, (x.width // size, size)))


def _head_norm(b: Builder, layer: Layer, y: Value) -> Value:
    """Return a layer norm of each head's output, if the layer has one."""
    if "time_mix_ln.weight" not in layer:
        return y
    return b.add("time_mix_ln", rec.GroupNorm(y, layer, "time_mix_ln", HEAD_EPS, y.shape[1], centered=True))
