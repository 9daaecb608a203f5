"""Layers over several streams or copies of hidden states as operations.

They are concatenated in a token's row. Sources: transformers `models/deepseek_v4/` and Xie et al. 2025, "mHC:
Manifold-Constrained Hyper-Connections"; `models/qwen4_exp/`; `models/gemma3n/` and Baykal et al. 2023, "Alternating
Updates for Efficient Transformers".
"""

from ..layer import Layer
from ..streams import LAST
from . import operations as op
from . import recurrent_operations as rec
from . import stream_operations as streams
from .builder import Builder, has
from .operations import Value


def begin_streams(b: Builder, x: Value) -> Value:
    """Return the streams of embedded tokens, all equal."""
    return b.add("hc_init", streams.Repeat(x, int(b.network.keys.need("hyper_connection.count"))))


def end_streams(b: Builder, x: Value) -> Value:
    """Return the last norm's input from the streams."""
    outside = b.network.global_tensors
    if b.network.keys.get("hyper_connection.count") is not None:
        x = b.add("hc_kept", streams.KeepStreams(x))
    if has(outside, f"{LAST}_fn"):
        mixes = _mixes(b, outside, LAST, "hc_head", x)
        return b.add("hc_head", streams.SumStreams(x, _side(b, outside, LAST, "hc_head_pre", mixes, 0, mixes.width)))
    if has(outside, f"{LAST}_down"):
        return gated_mean(b, outside, LAST, x)[0]
    return b.add("hc_head", streams.StreamMean(x, b.network.hparams.width))


def gated_mean(b: Builder, layer: Layer, role: str, x: Value) -> tuple[Value, Value]:
    """Return a gated mean of the streams, and the norm of all of them (Qwen4 Exp)."""
    width, name = b.network.hparams.width, role.replace("output_hc", "hc_head")
    normed = b.add(f"{name}_norm", rec.GroupNorm(x, layer, f"{role}_norm", b.network.hparams.eps, width))
    low = b.add(f"{name}_low", op.Scale(b.linear(layer, f"{role}_down", normed), width / x.width))
    gate = b.linear(layer, f"{role}_up", b.add(f"{name}_silu", op.Activate(low, "silu")))
    gated = b.add(f"{name}_gated", op.ScaleByGate(normed, gate))
    return b.add(f"{name}_pre", streams.StreamMean(gated, width)), normed


def inject(b: Builder, layer: Layer, role: str, x: Value, normed: Value, part: Value, name: str) -> Value:
    """Return the streams x with the output of a layer's part, added to each by its weight. normed: of x."""
    scores = b.linear(layer, f"{role}_inject", normed)
    scores = b.add(f"{role}_scores", op.Scale(scores, b.network.hparams.width / x.width))
    weights = b.add(f"{role}_weights", op.Scale(b.add(f"{role}_sigmoid", op.Activate(scores, "sigmoid")), 2.0))
    return b.add(name, streams.AddToStreams(x, part, weights))


class HyperConnection:
    """A part's ("attn", "ffn") input from mixed streams, and the weights for its output."""

    def __init__(self, b: Builder, layer: Layer, part: str, x: Value) -> None:
        keys, role = b.network.keys, f"hc_{part}"
        self.b, self.layer, self.part, self.x = b, layer, part, x
        self.mixes = _mixes(b, layer, role, role, x)
        self.count = int(keys.need("hyper_connection.count"))
        pre = _side(b, layer, role, f"{role}_pre_factors", self.mixes, 0, self.count)
        self.read = b.add(f"{role}_pre", streams.SumStreams(x, pre))

    def write(self, given: Value, name: str) -> Value:
        """Return the streams with the part's output."""
        b, layer, role, count, keys = self.b, self.layer, f"hc_{self.part}", self.count, self.b.network.keys
        factors = b.add(f"{role}_post_factors", streams.StreamFactors(self.mixes, layer, role, 1, count))
        factors = b.add(f"{role}_post_sigmoid", op.Activate(factors, "sigmoid"))
        eps, x = float(keys.need("hyper_connection.epsilon")), self.x
        if layer.need(f"{role}_base.weight").shape[-1] == 2 * count:  # HY V4: added to streams that are not mixed
            factors = b.add(f"{role}_post_scaled", op.Scale(factors, float(keys.need("hyper_connection.magnitude"))))
            factors = b.add(f"{role}_post_weights", op.Offset(factors, eps))
        else:
            factors = b.add(f"{role}_post_weights", op.Scale(factors, 2.0))
            rounds = int(keys.need("hyper_connection.sinkhorn_iterations"))
            between = b.add(f"{role}_comb", streams.BalanceStreams(self.mixes, layer, role, count, rounds, eps))
            x = b.add(f"{role}_mixed", streams.MixStreams(x, between))
        return b.add(name, streams.AddToStreams(x, given, factors))


def _mixes(b: Builder, layer: Layer, role: str, name: str, x: Value) -> Value:
    return b.linear(layer, f"{role}_fn", b.add(f"{name}_norm", op.PlainNorm(x, b.network.hparams.eps)), f"{name}_mixes")


def _side(b: Builder, layer: Layer, role: str, name: str, mixes: Value, number: int, count: int) -> Value:
    factors = b.add(name, streams.StreamFactors(mixes, layer, role, number, count))
    factors = b.add(f"{name}_sigmoid", op.Activate(factors, "sigmoid"))
    return b.add(f"{name}_weights", op.Offset(factors, float(b.network.keys.need("hyper_connection.epsilon"))))


def begin_copies(b: Builder, x: Value) -> Value:
    """Return copies of embedded tokens, of which each layer computes with one (Gemma 3n)."""
    outside, parts = b.network.global_tensors, [x]
    for i in range(outside.need("altup_proj.weight").shape[0]):
        made = b.add(f"altup_proj_{i}", op.ExpertLinear(x, outside, "altup_proj", i))
        parts.append(b.add(f"altup_added_{i}", streams.AsLong(made, x)))
    return b.add("inp_stacked", streams.Stack(tuple(parts)))


def end_copies(b: Builder, x: Value) -> Value:
    """Return the combined copies after the last layer."""
    outside, first, width = b.network.global_tensors, _copy(b, "altup_first", x, 0), b.network.hparams.width
    parts = [first]
    for i in range(x.width // width - 1):
        copy = _copy(b, f"altup_copy_{i}", x, i + 1)
        made = b.add(f"altup_unembd_{i}", op.ExpertLinear(copy, outside, "altup_unembd_proj", i))
        parts.append(b.add(f"altup_unembd_as_long_{i}", streams.AsLong(made, first)))
    return b.add("hidden_states", streams.StreamMean(b.add("altup_stacked", streams.Stack(tuple(parts))), width))


def predict_copies(b: Builder, layer: Layer, x: Value) -> tuple[Value, Value]:
    """Return the copies as predicted for a layer's end, and the one that the layer computes with."""
    active, count = int(b.network.keys.get("altup.active_idx")), x.width // b.network.hparams.width
    modalities = _modalities(b, layer, _copy(b, "activated", x, active), "predict")
    coefficients = b.linear(layer, "altup_predict_coef", modalities, split=(count, count))
    mixed = b.add("altup_mixed", streams.MixStreams(x, coefficients, to_first=True))
    expected = b.add("predictions", op.Add(x, mixed))
    return expected, _copy(b, "active_prediction", expected, active)


def correct_copies(b: Builder, layer: Layer, expected: Value, before: Value, after: Value) -> tuple[Value, Value]:
    """Return the predicted copies, corrected by a layer's result for one, and that one scaled."""
    coefficients = b.linear(layer, "altup_correct_coef", _modalities(b, layer, after, "correct"))
    shares = b.add("altup_correct_shares", op.Offset(coefficients, 1.0))
    changed = b.add("innovation", op.Add(after, before, -1.0))
    corrected = b.add("corrected", streams.AddToStreams(expected, changed, shares))
    one = _copy(b, "corrected_active", corrected, int(b.network.keys.get("altup.active_idx")))
    return corrected, b.add("first_prediction", op.ScaleBy(one, layer, "altup_correct_scale.weight"))


def _copy(b: Builder, name: str, x: Value, number: int) -> Value:
    width = b.network.hparams.width
    return b.add(name, op.Columns(x, number * width, (number + 1) * width))


def _modalities(b: Builder, layer: Layer, x: Value, use: str) -> Value:
    """Return each token's weights of the modalities."""
    normed = b.norm(layer, "altup_router_norm", x, f"altup_{use}_norm")
    scaled = b.add(f"altup_{use}_scaled", op.Scale(normed, 1 / x.width))
    return b.add(
        f"altup_{use}_modalities", op.Activate(b.linear(layer, "altup_router", scaled, f"altup_{use}_router"), "tanh")
    )
