"""RWKV 6 and 7 as lists of compiled operations: time mix and channel mix.

As in `state_mixers`; the formulas are those of `graph.rwkv`. Heads must be whole lanes wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quants import Tensor
from quants.kernels.lanes import LANES

from ..arrays import Floats
from ..kernels import dots
from ..kernels import rwkv_operations as rwkv
from ..kernels import state_operations as ops
from ..layer import Layer, Network
from ..products.gemv import MAX_TOKENS, Vectors, aligned, vectors
from .state_mixers import Mixer, Projection, Shapes, pack, projection, rows_in, rows_out


@dataclass(frozen=True)
class Heads:
    """Tensors of the heads. norm: weight and bias of the norm of their output, or None; first: weights of the current
    token's bonus.
    """

    size: int
    norm: Floats | None
    norm_bias: Floats | None
    first: Floats | None

    def fields(self) -> dict[int, Any]:
        named = (ops.WEIGHT, self.norm), (ops.BIAS, self.norm_bias), (rwkv.FIRST, self.first)
        return {ops.SIZE: self.size} | {field: array for field, array in named if array is not None}


def supports(network: Network) -> bool:
    """Return whether heads have a supported width."""
    return int(network.keys.need("wkv.head_size")) % LANES == 0


def _flat(layer: Layer, name: str) -> Floats | None:
    values = layer.array(name)
    return None if values is None else np.ascontiguousarray(values).reshape(-1)


def _heads(network: Network, layer: Layer, first: str) -> Heads:
    size = int(network.keys.need("wkv.head_size"))
    return Heads(
        size, _flat(layer, "time_mix_ln.weight"), _flat(layer, "time_mix_ln.bias"), _flat(layer, f"{first}.weight")
    )


def _need_flat(layer: Layer, name: str) -> Floats:
    return np.ascontiguousarray(layer.need_array(f"{name}.weight")).reshape(-1)


def _state_shapes(layer: Layer, width: int, heads: int, size: int) -> Shapes:
    """Return the shapes of a layer's states: the last row, the heads' matrices, and the last row of the channel mix, if
    it has one.
    """
    mixes = "channel_mix_key.weight" in layer
    return ((1, width), (heads, size, size)) + (((1, width),) if mixes else ())


def _several(width: int, count: int) -> tuple[Vectors, ...]:
    """Return rows of several inputs one after another: the addresses of all follow from that of the first."""
    room = -(-width // dots.SUPER) * dots.SUPER
    floats, shorts = aligned((count, MAX_TOKENS, room)), aligned((count, MAX_TOKENS, room), np.int16)
    numbers = aligned((count, MAX_TOKENS, room // dots.SUPER * dots.NUMBERS))
    return tuple(Vectors(floats[i], width, shorts[i], numbers[i]) for i in range(count))


def _mixtures(
    mixer: Mixer, shares: Floats, state: int, added: Sequence[Vectors] = (), keeps: bool = True
) -> tuple[Vectors, ...]:
    """Return the input mixed with the previous row, by each of `shares` (count, width) plus the additions of each
    token.
    """
    out = _several(mixer.x.width, len(shares))
    mixer.add(
        rwkv.mix_shifted,
        {
            **rows_in(mixer.x.floats),
            **rows_out(out[0], True),
            ops.TABLE: mixer.tables[state],
            ops.WIDTH: mixer.x.width,
            rwkv.COUNT: len(shares),
            ops.WEIGHT: np.ascontiguousarray(shares),
            rwkv.KEEPS: keeps,
            **(rows_in(added[0].floats, rwkv.ADDED, rwkv.ADDED_WIDTH) if added else {}),
        },
    )
    return out


def _activate(mixer: Mixer, activation: int, x: Floats, out: Vectors, wait: bool = True) -> None:
    fields = {ops.WIDTH: out.width, rwkv.ACTIVATION: activation, **rows_in(x), **rows_out(out, True)}
    mixer.add(rwkv.activate, fields, wait)


@dataclass(frozen=True)
class TimeMix7Spec:
    """RWKV 7's time mix. lerp: shares of r, w, k, v, a, and g (count, width); narrow: low-rank pairs of w, a, and of v
    and g if the layer has them.
    """

    lerp: Floats
    receptance: Projection
    key: Projection
    value: Projection
    output: Projection
    narrow: dict[str, tuple[Projection, Projection]]
    key_scale: Floats
    key_rate: Floats
    heads: Heads
    state_shapes: Shapes


def _pair(layer: Layer, name: str) -> tuple[Projection, Projection]:
    first, second = (projection(layer, f"time_mix_{name}{number}") for number in (1, 2))
    bias = _flat(layer, f"time_mix_{name}0.weight")
    return first, second if bias is None else replace(second, bias=bias)


def time_mix7_spec(network: Network, layer: Layer) -> TimeMix7Spec:
    width, heads = network.hparams.width, _heads(network, layer, "time_mix_r_k")
    r, k, v, o = (projection(layer, f"time_mix_{name}") for name in ("receptance", "key", "value", "output"))
    names = [name for name in "wavg" if f"time_mix_{name}1.weight" in layer and (name != "v" or layer.index)]
    return TimeMix7Spec(
        layer.need_array("time_mix_lerp_fused.weight").reshape(-1, width),
        r,
        k,
        v,
        o,
        {name: _pair(layer, name) for name in names},
        _need_flat(layer, "time_mix_k_k"),
        _need_flat(layer, "time_mix_k_a"),
        heads,
        _state_shapes(layer, width, width // heads.size, heads.size),
    )


def write_time_mix7(mixer: Mixer, spec: TimeMix7Spec, first_values: Vectors | None) -> Vectors:
    """Add the operations of `graph.rwkv.time_mix`. Returns the layer's values: later layers read those of the first."""
    inputs = dict(zip("rwkvag", _mixtures(mixer, spec.lerp, 0), strict=False))
    inner = {name: mixer.project(first, inputs[name], False) for name, (first, _) in spec.narrow.items()}
    r, k = mixer.project(spec.receptance, inputs["r"], False), mixer.project(spec.key, inputs["k"], False)
    v = mixer.project(spec.value, inputs["v"])
    last = list(inner)[-1]
    for name, each in inner.items():
        _activate(mixer, {"w": rwkv.TANH, "g": rwkv.LOGISTIC}.get(name, 0), each.floats, each, name == last)
    wide = {name: mixer.project(spec.narrow[name][1], inner[name], name == last) for name in inner}
    out, scratch = vectors(r.width), vectors(r.width)
    more = rows_in(wide["g"].floats, ops.GATE, ops.GATE_WIDTH) if "g" in wide else {}
    if first_values is not None and "v" in wide:
        more |= {rwkv.FIRST_VALUES: first_values.floats, rwkv.VALUE_GATE: wide["v"].floats}
    mixer.add(
        rwkv.wkv7_step,
        {
            **rows_in(r.floats),
            **rows_out(out),
            ops.TABLE: mixer.tables[1],
            ops.HEADS: r.width // spec.heads.size,
            rwkv.K: k.floats,
            rwkv.V: v.floats,
            rwkv.W: wide["w"].floats,
            rwkv.A: wide["a"].floats,
            rwkv.KEY_SCALE: spec.key_scale,
            rwkv.KEY_RATE: spec.key_rate,
            rwkv.SCRATCH: scratch.floats,
            **spec.heads.fields(),
            **more,
        },
    )
    pack(mixer, out)
    mixer.finish(spec.output, out)
    return v


@dataclass(frozen=True)
class TimeMix6Spec:
    """RWKV 6's time mix. lerp_x: shares of the low-rank net's input; lerp: of w, k, v, r, g before that net's
    additions; by_token: the net.
    """

    lerp_x: Floats
    lerp: Floats
    by_token: tuple[Projection, tuple[Projection, ...]]
    receptance: Projection
    key: Projection
    value: Projection
    gate: Projection
    decay: tuple[Projection, Projection]
    output: Projection
    heads: Heads
    state_shapes: Shapes


def _expert(weight: Tensor, stored: Projection, number: int) -> Projection:
    """Return one matrix of a stacked weight."""
    rows = weight.shape[1]
    return Projection(weight, stored.stored[number * rows : (number + 1) * rows])


def time_mix6_spec(network: Network, layer: Layer) -> TimeMix6Spec:
    width, heads = network.hparams.width, _heads(network, layer, "time_mix_first")
    names = ("receptance", "key", "value", "gate", "decay_w1", "decay_w2", "output")
    r, k, v, g, first, second, o = (projection(layer, f"time_mix_{name}") for name in names)
    second = replace(second, bias=_need_flat(layer, "time_mix_decay"))
    if "time_mix_lerp_fused.weight" in layer:
        lerp = layer.need_array("time_mix_lerp_fused.weight").reshape(5, width)
    else:  # older files
        lerp = np.stack([_need_flat(layer, f"time_mix_lerp_{name}") for name in "wkvrg"])
    stacked = projection(layer, "time_mix_w2")
    return TimeMix6Spec(
        _need_flat(layer, "time_mix_lerp_x")[None],
        lerp,
        (projection(layer, "time_mix_w1"), tuple(_expert(stacked.weight, stacked, i) for i in range(5))),
        r,
        k,
        v,
        g,
        (first, second),
        o,
        heads,
        _state_shapes(layer, width, r.weight.rows // heads.size, heads.size),
    )


def write_time_mix6(mixer: Mixer, spec: TimeMix6Spec) -> None:
    """Add the operations of `graph.rwkv.time_mix`."""
    (mixed,) = _mixtures(mixer, spec.lerp_x, 0, keeps=False)
    first, seconds = spec.by_token
    inner, rank = mixer.project(first, mixed), seconds[0].weight.width
    parts, added = _several(rank, 5), _several(mixer.x.width, 5)
    for i, part in enumerate(parts):
        _activate(mixer, rwkv.TANH, inner.floats[:, i * rank :], part, i == 4)
    for i, second in enumerate(seconds):
        mixer.project_into(second, parts[i], added[i].floats, i == 4)
    read_w, read_k, read_v, read_r, read_g = _mixtures(mixer, spec.lerp, 0, added)
    r, k = mixer.project(spec.receptance, read_r, False), mixer.project(spec.key, read_k, False)
    v, gate = mixer.project(spec.value, read_v, False), mixer.project(spec.gate, read_g, False)
    narrow = mixer.project(spec.decay[0], read_w)
    _activate(mixer, rwkv.TANH, narrow.floats, narrow)
    w = mixer.project(spec.decay[1], narrow)
    out, scratch = vectors(r.width), aligned((2 * MAX_TOKENS, r.room))
    mixer.add(
        rwkv.wkv6_step,
        {
            **rows_in(r.floats),
            **rows_out(out),
            ops.TABLE: mixer.tables[1],
            ops.HEADS: r.width // spec.heads.size,
            ops.GROUPS: k.width // spec.heads.size,
            rwkv.K: k.floats,
            rwkv.V: v.floats,
            rwkv.KEY_WIDTH: k.room,
            rwkv.W: w.floats,
            rwkv.SCRATCH: scratch,
            **rows_in(gate.floats, ops.GATE, ops.GATE_WIDTH),
            **spec.heads.fields(),
        },
    )
    pack(mixer, out)
    mixer.finish(spec.output, out)


@dataclass(frozen=True)
class ChannelMixSpec:
    """The channel mix. lerp: shares of the key, and of the receptance if there is one; scale: of the sum with the
    residual.
    """

    lerp: Floats
    key: Projection
    value: Projection
    receptance: Projection | None
    scale: float


def channel_mix_spec(network: Network, layer: Layer) -> ChannelMixSpec:
    has = "channel_mix_receptance.weight" in layer
    period = int(network.keys.get("rescale_every_n_layers"))
    return ChannelMixSpec(
        np.stack([_need_flat(layer, f"channel_mix_lerp_{name}") for name in ("kr" if has else "k")]),
        projection(layer, "channel_mix_key"),
        projection(layer, "channel_mix_value"),
        projection(layer, "channel_mix_receptance") if has else None,
        0.5 if period and (layer.index + 1) % period == 0 else 1.0,
    )


def write_channel_mix(mixer: Mixer, spec: ChannelMixSpec) -> None:
    """Add the operations of `graph.rwkv.channel_mix`, added to `mixer.out`, and the scale of the sum."""
    mixed = _mixtures(mixer, spec.lerp, 2)
    gate = None if spec.receptance is None else mixer.project(spec.receptance, mixed[1], False)
    inner = mixer.project(spec.key, mixed[0])
    _activate(mixer, rwkv.SQUARED_RELU, inner.floats, inner)
    if gate is None and spec.scale == 1.0:
        return mixer.finish(spec.value, inner)
    given = mixer.project(spec.value, inner)
    mixer.add(
        rwkv.add_gated,
        {
            **rows_in(given.floats),
            **rows_out(mixer.out),
            ops.WIDTH: given.width,
            rwkv.SCALE: spec.scale,
            **({} if gate is None else rows_in(gate.floats, ops.GATE, ops.GATE_WIDTH)),
        },
    )
    return None
