"""Layers with states as lists of compiled operations: Mamba, Mamba-2, short convolutions.

Each writer appends a layer's whole mixer, from its normed input to the product that adds its result, given the layer's
tensors and numbers as plain data. The formulas are those of `graph.state_space`. States are shared with the executor
for texts: one float32 array for each text and shape in `state_shapes`, whose addresses are in `tables`, an int64 array
by slot for each state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from archs.hparams.file_keys import Keys
from quants import Tensor
from quants.kernels.lanes import LANES

from ..arrays import Floats
from ..kernels import dots
from ..kernels import state_operations as ops
from ..layer import Layer
from ..products.gemv import Vectors, product_fields, stored_rows, vectors
from .recurrence import filled

Tables = Sequence[NDArray[np.int64]]  # of each state the addresses by slot
Shapes = tuple[tuple[int, ...], ...]


class OperationList(Protocol):
    """The list that operations are appended to; arrays in fields become addresses, and are kept alive."""

    def add(self, operation: Callable[[], int], fields: dict[int, Any], wait: bool = True) -> None:
        """Append an operation. wait: threads wait for one another after it."""


@dataclass(frozen=True)
class Projection:
    """A weight, its rows as they are in memory, and its bias."""

    weight: Tensor
    stored: NDArray[np.uint8]
    bias: Floats | None = None


def projection(layer: Layer, name: str) -> Projection:
    weight = layer.need(f"{name}.weight")
    return Projection(weight, stored_rows(weight), layer.array(f"{name}.bias"))


@dataclass(frozen=True)
class Convolution:
    """taps: float32 (channels, count); bias: (channels,)."""

    taps: Floats
    bias: Floats | None = None

    @property
    def tail(self) -> tuple[int, int]:
        """Return the shape of the inputs kept for a text."""
        return self.taps.shape[1] - 1, len(self.taps)


def convolution(layer: Layer, name: str) -> Convolution:
    return Convolution(layer.need_array(f"{name}.weight"), layer.array(f"{name}.bias"))


@dataclass(frozen=True)
class Mixer:
    """The target of a writer. state: values that each run sets anew, int64 (see `kernels.context_state`). x: the
    layer's normed input. out: where the result is written, or added.
    """

    operations: OperationList
    state: NDArray[np.int64]
    tables: Tables
    x: Vectors
    out: Vectors
    adds: bool

    def project(self, weight: Projection, x: Vectors, wait: bool = True) -> Vectors:
        out = vectors(len(weight.stored))
        self.project_into(weight, x, out.floats, wait)
        return out

    def finish(self, weight: Projection, x: Vectors) -> None:
        """Add the last product."""
        self.project_into(weight, x, self.out.floats, True, self.adds)

    def project_into(self, weight: Projection, x: Vectors, out: Floats, wait: bool, adds: bool = False) -> None:
        """Add a product. out: some columns of rows."""
        fields = product_fields(x, weight.weight, weight.stored, weight.bias, out, adds, self.state)
        self.operations.add(dots.OF_FORMAT[weight.weight.format.name], fields, wait)

    def add(self, operation: Callable[[], int], fields: dict[int, Any], wait: bool = True) -> None:
        self.operations.add(operation, {ops.STATE: self.state, **fields}, wait)


def rows_in(x: Floats, at: int = ops.X, width_at: int = ops.X_WIDTH) -> dict[int, Any]:
    """Return fields of an input, which may be some columns of wider rows."""
    return {at: x, width_at: x.strides[0] // 4}


def rows_out(out: Vectors, as_integers: bool = False) -> dict[int, Any]:
    fields: dict[int, Any] = {ops.OUT: out.floats, ops.OUT_WIDTH: out.room}
    return fields | {ops.SHORTS: out.shorts, ops.NUMBERS_AT: out.numbers} if as_integers else fields


def gate_in(gate: Floats, gate_type: int = ops.SILU) -> dict[int, Any]:
    return {**rows_in(gate, ops.GATE, ops.GATE_WIDTH), ops.GATE_TYPE: gate_type}


def add_convolution(mixer: Mixer, own: Convolution, x: Floats, more: dict[int, Any], out: Vectors) -> None:
    """Add a causal convolution; `more` has the fields of its activation and of factors before and after it."""
    channels, count = own.taps.shape
    bias = np.zeros(channels, np.float32) if own.bias is None else own.bias.reshape(-1)
    mixer.add(
        ops.convolve,
        {
            ops.TABLE: mixer.tables[0],
            ops.WIDTH: channels,
            ops.TAPS: count,
            ops.WEIGHT: filled(own.taps.T),
            ops.BIAS: filled(bias),
            **rows_in(x),
            **rows_out(out),
            **more,
        },
    )


def convolved(mixer: Mixer, own: Convolution, x: Floats, more: dict[int, Any] | None = None) -> Vectors:
    """Return a convolution with a silu, in rows of its own."""
    out = vectors(len(own.taps))
    add_convolution(mixer, own, x, {ops.ACTIVATION: ops.SILU} | (more or {}), out)
    return out


@dataclass(frozen=True)
class Norm:
    """weight: of all of a row, or of one of its equal groups; None: no norm."""

    weight: Floats | None
    eps: float
    groups: int = 1
    bias: Floats | None = None
    centered: bool = False


def normed(
    mixer: Mixer, norm: Norm, x: Floats, width: int, gate: dict[int, Any] | None = None, wait: bool = True
) -> Vectors:
    """Return the norm of x, times its gate, also as integers, in rows of its own."""
    out, fields = vectors(width), dict[int, Any]()
    if norm.weight is not None:
        weight = np.ascontiguousarray(norm.weight, np.float32).reshape(-1)
        fields = {ops.WEIGHT: weight, ops.WEIGHT_WIDTH: len(weight), ops.EPS: float(norm.eps)}
        if norm.bias is not None:
            fields[ops.BIAS] = np.ascontiguousarray(norm.bias, np.float32).reshape(-1)
    mixer.add(
        ops.norm_groups,
        {
            ops.WIDTH: width,
            ops.GROUPS: norm.groups,
            ops.CENTERED: norm.centered,
            **rows_in(x),
            **rows_out(out, True),
            **fields,
            **(gate or {}),
        },
        wait,
    )
    return out


def pack(mixer: Mixer, x: Vectors, wait: bool = True) -> None:
    """Add an operation that writes the integers of x."""
    fields = {ops.WIDTH: x.width, ops.GROUPS: 1, **rows_in(x.floats), **rows_out(x, True)}
    mixer.add(ops.norm_groups, fields, wait)


@dataclass(frozen=True)
class Mamba2Spec:
    """Mamba-2. a, d: by head; norm: None if there is only a gate; dt_bias: None for none."""

    project_in: Projection
    project_out: Projection
    convolution: Convolution
    a: Floats
    d: Floats
    dt_bias: Floats | None
    dt_min: float
    dt_max: float
    inner: int
    size: int
    groups: int
    norm: Norm
    norm_before_gate: bool

    @property
    def heads(self) -> int:
        return len(self.a)

    @property
    def state_shapes(self) -> Shapes:
        return self.convolution.tail, (self.heads, self.size, whole_lanes(self.inner // self.heads))


def whole_lanes(width: int) -> int:
    return -(-width // LANES) * LANES


def mamba2_spec(layer: Layer, keys: Keys, eps: float) -> Mamba2Spec:
    weight, groups = layer.array("ssm_norm.weight"), int(keys.get("ssm.group_count"))
    inner = int(keys.need("ssm.inner_size"))
    return Mamba2Spec(
        projection(layer, "ssm_in"),
        projection(layer, "ssm_out"),
        convolution(layer, "ssm_conv1d"),
        layer.need_array("ssm_a").reshape(-1),
        layer.need_array("ssm_d").reshape(-1),
        layer.array("ssm_dt.bias"),
        float(keys.get("ssm.time_step_min")),
        float(keys.get("ssm.time_step_max")),
        inner,
        int(keys.need("ssm.state_size")),
        groups,
        Norm(weight, eps, 1 if weight is None else inner // weight.shape[-1]),
        bool(keys.get("ssm.norm_before_gate")),
    )


def write_mamba2(mixer: Mixer, spec: Mamba2Spec) -> None:
    """Add the operations of `graph.state_space.mamba2`."""
    inner, keys = spec.inner, spec.groups * spec.size
    width = inner // spec.heads
    both = mixer.project(spec.project_in, mixer.x)
    mixed = convolved(mixer, spec.convolution, both.floats[:, inner:])
    y, gate = vectors(inner), both.floats
    early = spec.norm.weight is not None and not spec.norm_before_gate
    mixer.add(
        ops.scan_heads,
        {
            **rows_in(mixed.floats),
            **rows_out(y),
            ops.TABLE: mixer.tables[1],
            ops.HEADS: spec.heads,
            ops.HEAD_WIDTH: width,
            ops.X_HEAD_APART: width,
            ops.GROUPS: spec.groups,
            ops.SIZE: spec.size,
            ops.B: mixed.floats[:, inner:],
            ops.C: mixed.floats[:, inner + keys :],
            ops.B_WIDTH: mixed.room,
            ops.B_APART: spec.size,
            **rows_in(both.floats[:, 2 * inner + 2 * keys :], ops.DT, ops.DT_WIDTH),
            ops.BIAS: 0 if spec.dt_bias is None else spec.dt_bias,
            ops.DT_MIN: spec.dt_min,
            ops.DT_MAX: spec.dt_max,
            ops.A: spec.a,
            ops.D: spec.d,
            **(rows_in(gate, ops.GATE, ops.GATE_WIDTH) if early else {}),
        },
    )
    mixer.finish(spec.project_out, normed(mixer, spec.norm, y.floats, inner, None if early else gate_in(gate)))


@dataclass(frozen=True)
class MambaSpec:
    """Mamba. a: (size, channels), as scans take it; norms: of the time step, B and C."""

    project_in: Projection
    project_x: Projection
    project_dt: Projection
    project_out: Projection
    convolution: Convolution
    a: Floats
    d: Floats
    norms: tuple[tuple[Norm, ...], tuple[Norm, ...], tuple[Norm, ...]]
    inner: int

    @property
    def state_shapes(self) -> Shapes:
        return self.convolution.tail, (len(self.a), whole_lanes(self.inner))


def mamba_spec(layer: Layer, keys: Keys, eps: float) -> MambaSpec:
    names, size = ("dt", "b", "c"), int(keys.need("ssm.state_size"))
    widths = int(keys.need("ssm.time_step_rank")), size, size
    norms = []
    for name, width in zip(names, widths, strict=True):
        own = []
        if keys.get("ssm.dt_b_c_rms"):
            own.append(Norm(np.ones(width, np.float32), float(keys.get("ssm.dt_b_c_rms_epsilon"))))
        if (weight := weight_of_norm(layer, f"ssm_{name}_norm")) is not None:
            own.append(Norm(weight, eps))
        norms.append(tuple(own))
    return MambaSpec(
        projection(layer, "ssm_in"),
        projection(layer, "ssm_x"),
        projection(layer, "ssm_dt"),
        projection(layer, "ssm_out"),
        convolution(layer, "ssm_conv1d"),
        np.ascontiguousarray(layer.need_array("ssm_a").T),
        layer.need_array("ssm_d").reshape(-1),
        (norms[0], norms[1], norms[2]),
        int(keys.need("ssm.inner_size")),
    )


def weight_of_norm(layer: Layer, name: str) -> Floats | None:
    """Return a norm's weight, whose name lacks ".weight" in Falcon-H1's and PLaMo's files."""
    weight = layer.array(f"{name}.weight")
    return layer.array(name) if weight is None else weight


def _narrow(mixer: Mixer, norms: Sequence[Norm], x: Floats, width: int, wait: bool) -> Vectors:
    """Return a narrow part of rows under its norms, in rows of its own: one thread's work."""
    out, norms = x, norms or (Norm(None, 0.0),)
    for i, norm in enumerate(norms):
        made = normed(mixer, norm, out, width, wait=wait or i < len(norms) - 1)
        out = made.floats
    return made


def write_mamba(mixer: Mixer, spec: MambaSpec) -> None:
    """Add the operations of `graph.state_space.mamba`."""
    inner, size, rank = spec.inner, len(spec.a), spec.project_dt.weight.width
    both = mixer.project(spec.project_in, mixer.x)
    inputs = vectors(inner)
    add_convolution(
        mixer,
        spec.convolution,
        both.floats,
        {ops.ACTIVATION: ops.SILU, ops.SHORTS: inputs.shorts, ops.NUMBERS_AT: inputs.numbers},
        inputs,
    )
    parts = mixer.project(spec.project_x, inputs)
    b, c = (parts.floats[:, at:] for at in (rank, rank + size))
    if spec.norms[1] or spec.norms[2]:
        b, c = (_narrow(mixer, own, part, size, False).floats for own, part in zip(spec.norms[1:], (b, c), strict=True))
    dt = mixer.project(spec.project_dt, _narrow(mixer, spec.norms[0], parts.floats, rank, True))
    out = vectors(inner)
    mixer.add(
        ops.scan_channels,
        {
            **rows_in(inputs.floats),
            **rows_out(out, True),
            ops.TABLE: mixer.tables[1],
            ops.WIDTH: inner,
            ops.SIZE: size,
            ops.B: b,
            ops.C: c,
            ops.B_WIDTH: b.strides[0] // 4,
            **rows_in(dt.floats, ops.DT, ops.DT_WIDTH),
            ops.A: filled(spec.a),
            ops.D: filled(spec.d),
            **rows_in(both.floats[:, inner:], ops.GATE, ops.GATE_WIDTH),
        },
    )
    mixer.finish(spec.project_out, out)


@dataclass(frozen=True)
class MambaOfHeadsSpec:
    """PLaMo 2's mixer. a, d: by head; norms: of B, C and the time step; heads are whole lanes wide."""

    project_in: Projection
    project_x: Projection
    project_dt: Projection
    project_out: Projection
    convolution: Convolution
    a: Floats
    d: Floats
    norms: tuple[tuple[Norm, ...], tuple[Norm, ...], tuple[Norm, ...]]
    inner: int
    size: int

    @property
    def state_shapes(self) -> Shapes:
        return self.convolution.tail, (len(self.a), self.size, whole_lanes(self.inner // len(self.a)))


def mamba_of_heads_spec(layer: Layer, keys: Keys, eps: float) -> MambaOfHeadsSpec:
    weights = [weight_of_norm(layer, f"ssm_{name}_norm") for name in ("b", "c", "dt")]
    b, c, dt = (() if weight is None else (Norm(weight, eps),) for weight in weights)
    return MambaOfHeadsSpec(
        projection(layer, "ssm_in"),
        projection(layer, "ssm_x"),
        projection(layer, "ssm_dt"),
        projection(layer, "ssm_out"),
        convolution(layer, "ssm_conv1d"),
        layer.need_array("ssm_a").reshape(-1),
        layer.need_array("ssm_d").reshape(-1),
        (b, c, dt),
        int(keys.need("ssm.inner_size")),
        int(keys.need("ssm.state_size")),
    )


def write_mamba_of_heads(mixer: Mixer, spec: MambaOfHeadsSpec) -> None:
    """Add the operations of `graph.state_space.mamba_of_heads`."""
    inner, size, heads, rank = spec.inner, spec.size, len(spec.a), spec.project_dt.weight.width
    width = inner // heads
    both = mixer.project(spec.project_in, mixer.x)  # of each head its gate, then its inputs
    inputs, y = vectors(inner), vectors(inner)
    add_convolution(
        mixer,
        spec.convolution,
        both.floats[:, width:],
        {
            ops.ACTIVATION: ops.SILU,
            ops.SHORTS: inputs.shorts,
            ops.NUMBERS_AT: inputs.numbers,
            ops.X_BLOCK: width,
            ops.X_APART: 2 * width,
        },
        inputs,
    )
    parts = mixer.project(spec.project_x, inputs).floats
    b, c = (_narrow(mixer, spec.norms[i], parts[:, i * size :], size, False).floats for i in (0, 1))
    dt = mixer.project(spec.project_dt, _narrow(mixer, spec.norms[2], parts[:, 2 * size :], rank, True))
    mixer.add(
        ops.scan_heads,
        {
            **rows_in(inputs.floats),
            **rows_out(y),
            ops.TABLE: mixer.tables[1],
            ops.HEADS: heads,
            ops.HEAD_WIDTH: width,
            ops.X_HEAD_APART: width,
            ops.GROUPS: 1,
            ops.SIZE: size,
            ops.B: b,
            ops.C: c,
            ops.B_WIDTH: b.strides[0] // 4,
            **rows_in(dt.floats, ops.DT, ops.DT_WIDTH),
            ops.DT_MIN: 0.0,
            ops.DT_MAX: np.inf,
            ops.A: spec.a,
            ops.D: spec.d,
        },
    )
    gate = {**gate_in(both.floats), ops.GATE_BLOCK: width, ops.GATE_APART: 2 * width}
    mixer.finish(spec.project_out, normed(mixer, Norm(None, 0.0), y.floats, inner, gate))


@dataclass(frozen=True)
class ShortConvolutionSpec:
    """LFM2's mixer."""

    project_in: Projection
    project_out: Projection
    convolution: Convolution

    @property
    def state_shapes(self) -> Shapes:
        return (self.convolution.tail,)


def short_convolution_spec(layer: Layer) -> ShortConvolutionSpec:
    return ShortConvolutionSpec(
        projection(layer, "shortconv.in_proj"),
        projection(layer, "shortconv.out_proj"),
        convolution(layer, "shortconv.conv"),
    )


def write_short_convolution(mixer: Mixer, spec: ShortConvolutionSpec) -> None:
    """Add the operations of `graph.state_space.short_convolution`."""
    width = len(spec.convolution.taps)
    parts, out = mixer.project(spec.project_in, mixer.x), vectors(width)
    add_convolution(
        mixer,
        spec.convolution,
        parts.floats[:, 2 * width :],
        {
            **rows_in(parts.floats, ops.BEFORE, ops.BEFORE_WIDTH),
            **rows_in(parts.floats[:, width:], ops.AFTER, ops.AFTER_WIDTH),
            ops.SHORTS: out.shorts,
            ops.NUMBERS_AT: out.numbers,
        },
        out,
    )
    mixer.finish(spec.project_out, out)
