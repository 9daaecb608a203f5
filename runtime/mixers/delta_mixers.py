"""Linear attention with a matrix for each head as compiled operations: gated delta nets, Kimi's delta attention,
lightning attention. As `state_mixers`; the formulas are those of `graph.linear_attention`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Floats
from ..kernels import delta_operations as delta
from ..kernels import state_operations as ops
from ..layer import Layer, Network
from ..products.gemv import Vectors, vectors
from .recurrence import LIGHTNING_EPS, lightning_rates
from .state_mixers import (
    Convolution,
    Mixer,
    Norm,
    Projection,
    Shapes,
    convolution,
    convolved,
    gate_in,
    normed,
    pack,
    projection,
    rows_in,
    rows_out,
    weight_of_norm,
    whole_lanes,
)


@dataclass(frozen=True)
class Delta:
    """Numbers of the delta rule. a: by head; bias: of time steps; step_type, turns: see
    `kernels.delta_operations.delta_step`.
    """

    a: Floats
    bias: Floats
    size: int
    width: int
    groups: int
    step_type: int
    turns: bool = False
    bound: float = 0.0

    @property
    def heads(self) -> int:
        return len(self.a)

    @property
    def matrices(self) -> tuple[int, int, int]:
        return self.heads, self.size, whole_lanes(self.width)


def _add_delta(mixer: Mixer, own: Delta, mixed: Vectors, more: dict[int, Any]) -> Vectors:
    """Return the delta rule on rows of queries, keys and values."""
    out, keys = vectors(own.heads * own.width), own.groups * own.size
    mixer.add(
        delta.delta_step,
        {
            **rows_in(mixed.floats),
            **rows_out(out),
            ops.TABLE: mixer.tables[1],
            ops.HEADS: own.heads,
            ops.HEAD_WIDTH: own.width,
            ops.GROUPS: own.groups,
            ops.SIZE: own.size,
            delta.K: mixed.floats[:, keys:],
            delta.V: mixed.floats[:, 2 * keys :],
            delta.A: own.a,
            ops.BIAS: own.bias,
            delta.STEP_TYPE: own.step_type,
            delta.TURNS: own.turns,
            delta.BOUND: own.bound,
            **more,
        },
    )
    return out


@dataclass(frozen=True)
class GatedDeltaSpec:
    """A gated delta net. project_beta, project_alpha: the same matrix if one gives both, by heads of keys."""

    project_in: Projection
    project_beta: Projection
    project_alpha: Projection
    project_gate: Projection
    project_out: Projection
    convolution: Convolution
    delta: Delta
    norm: Norm
    gate: int

    @property
    def state_shapes(self) -> Shapes:
        return self.convolution.tail, self.delta.matrices


def gated_delta_spec(network: Network, layer: Layer) -> GatedDeltaSpec:
    keys, both = network.keys, "ssm_ba.weight" in layer
    groups, heads = int(keys.need("ssm.group_count")), int(keys.need("ssm.time_step_rank"))
    own = Delta(
        layer.need_array("ssm_a").reshape(-1),
        layer.need_array("ssm_dt.bias").reshape(-1),
        int(keys.need("ssm.state_size")),
        int(keys.need("ssm.inner_size")) // heads,
        groups,
        delta.BY_HEAD,
        not both,
    )
    beta, alpha = ("ssm_ba", "ssm_ba") if both else ("ssm_beta", "ssm_alpha")
    return GatedDeltaSpec(
        projection(layer, "attn_qkv"),
        projection(layer, beta),
        projection(layer, alpha),
        projection(layer, "attn_gate"),
        projection(layer, "ssm_out"),
        convolution(layer, "ssm_conv1d"),
        own,
        Norm(weight_of_norm(layer, "ssm_norm"), float(network.hparams.eps), heads),
        ops.SIGMOID if network.block.delta_gate == "sigmoid" else ops.SILU,
    )


def write_gated_delta(mixer: Mixer, spec: GatedDeltaSpec) -> None:
    """Add the operations of `graph.linear_attention.gated_delta`."""
    own = spec.delta
    beta = mixer.project(spec.project_beta, mixer.x, False).floats
    if spec.project_alpha.weight is spec.project_beta.weight:
        block, apart = own.heads // own.groups, 2 * (own.heads // own.groups)
        alpha = beta[:, block:]
    else:
        block, apart, alpha = own.heads, 0, mixer.project(spec.project_alpha, mixer.x, False).floats
    gate = mixer.project(spec.project_gate, mixer.x, False)
    mixed = convolved(mixer, spec.convolution, mixer.project(spec.project_in, mixer.x).floats)
    y = _add_delta(
        mixer,
        own,
        mixed,
        {
            **rows_in(beta, delta.BETA, delta.BETA_WIDTH),
            **rows_in(alpha, delta.STEPS, delta.STEPS_WIDTH),
            delta.BLOCK: block,
            delta.APART: apart,
        },
    )
    mixer.finish(spec.project_out, normed(mixer, spec.norm, y.floats, y.width, gate_in(gate.floats, spec.gate)))


@dataclass(frozen=True)
class KimiDeltaSpec:
    """Kimi's delta attention. projects: of queries, keys and values; project_steps, project_gate: one matrix, or two in
    sequence.
    """

    projects: tuple[Projection, Projection, Projection]
    project_beta: Projection
    project_steps: tuple[Projection, ...]
    project_gate: tuple[Projection, ...]
    project_out: Projection
    convolution: Convolution
    delta: Delta
    norm: Norm

    @property
    def state_shapes(self) -> Shapes:
        return self.convolution.tail, self.delta.matrices


def _chain(layer: Layer, name: str) -> tuple[Projection, ...]:
    if f"{name}.weight" in layer:
        return (projection(layer, name),)
    return tuple(projection(layer, f"{name}_{part}") for part in "ab" if f"{name}_{part}.weight" in layer)


def kimi_delta_spec(network: Network, layer: Layer) -> KimiDeltaSpec:
    size, heads = int(network.keys.need("kda.head_dim")), network.hparams.layers[layer.index].heads
    bound, taps = network.keys.get("kda.gate_lower_bound"), []
    for name in "qkv":
        own = layer.need_array(f"ssm_conv1d_{name}.weight")
        taps.append(own.reshape(-1, own.shape[-1]))
    q, k, v = (projection(layer, f"attn_{name}") for name in "qkv")
    return KimiDeltaSpec(
        (q, k, v),
        projection(layer, "ssm_beta"),
        _chain(layer, "ssm_f"),
        _chain(layer, "ssm_g"),
        projection(layer, "attn_output"),
        Convolution(np.concatenate(taps)),
        Delta(
            layer.need_array("ssm_a").reshape(-1),
            layer.need_array("ssm_dt.bias").reshape(-1),
            size,
            size,
            heads,
            delta.BY_CHANNEL if bound is None else delta.BOUNDED,
            bound=0.0 if bound is None else float(bound),
        ),
        Norm(weight_of_norm(layer, "ssm_norm"), float(network.hparams.eps), heads),
    )


def write_kimi_delta(mixer: Mixer, spec: KimiDeltaSpec) -> None:
    """Add the operations of `graph.linear_attention.kimi_delta`."""
    own, chains = spec.delta, (spec.project_steps, spec.project_gate)
    given = [mixer.project(chain[0], mixer.x, False) for chain in chains]
    beta = mixer.project(spec.project_beta, mixer.x, False)
    inputs, at = vectors(len(spec.convolution.taps)), 0
    for each in spec.projects:
        mixer.project_into(each, mixer.x, inputs.floats[:, at:], each is spec.projects[-1])
        at += each.weight.rows
    longer = [i for i, chain in enumerate(chains) if len(chain) > 1]
    for i in longer:  # convolutions are waited for anyway
        pack(mixer, given[i], False)
    mixed = convolved(mixer, spec.convolution, inputs.floats)
    for i in longer:
        given[i] = mixer.project(chains[i][1], given[i], i == longer[-1])
    steps, gate = given
    y = _add_delta(
        mixer,
        own,
        mixed,
        {
            **rows_in(beta.floats, delta.BETA, delta.BETA_WIDTH),
            **rows_in(steps.floats, delta.STEPS, delta.STEPS_WIDTH),
            delta.BLOCK: own.heads,
            delta.APART: 0,
        },
    )
    mixer.finish(spec.project_out, normed(mixer, spec.norm, y.floats, y.width, gate_in(gate.floats, ops.SIGMOID)))


@dataclass(frozen=True)
class LightningSpec:
    """Lightning attention. rates: each head's decay; silu: whether it is applied to queries, keys and values."""

    project_in: Projection
    project_gate: Projection
    project_out: Projection
    rates: Floats
    size: int
    silu: bool
    norm: Norm

    @property
    def state_shapes(self) -> Shapes:
        return (0,), (len(self.rates), self.size, whole_lanes(self.size))


def lightning_spec(network: Network, layer: Layer) -> LightningSpec:
    own = network.hparams.layers[layer.index]
    rates = lightning_rates(layer.index, len(network.hparams.layers), own.heads)
    return LightningSpec(
        projection(layer, "attn_qkv"),
        projection(layer, "attn_gate"),
        projection(layer, "attn_output"),
        rates,
        own.key_width,
        network.hparams.activation == "silu",
        Norm(weight_of_norm(layer, "attn_norm_2"), LIGHTNING_EPS),
    )


def write_lightning(mixer: Mixer, spec: LightningSpec) -> None:
    """Add the operations of `graph.linear_attention.lightning`."""
    heads, size, apart = len(spec.rates), spec.size, 3 * spec.size
    gate = mixer.project(spec.project_gate, mixer.x, False)
    mixed = mixer.project(spec.project_in, mixer.x)
    if spec.silu:  # x * sigmoid(x)
        mixer.add(
            ops.norm_groups,
            {
                ops.WIDTH: mixed.width,
                ops.GROUPS: 1,
                **rows_in(mixed.floats),
                **rows_out(mixed),
                **gate_in(mixed.floats, ops.SIGMOID),
            },
        )
    y, x = vectors(heads * size), mixed.floats
    mixer.add(
        ops.scan_heads,
        {
            **rows_in(x[:, 2 * size :]),
            **rows_out(y),
            ops.TABLE: mixer.tables[1],
            ops.HEADS: heads,
            ops.HEAD_WIDTH: size,
            ops.X_HEAD_APART: apart,
            ops.GROUPS: heads,
            ops.SIZE: size,
            ops.B: x[:, size:],
            ops.C: x,
            ops.B_WIDTH: mixed.room,
            ops.B_APART: apart,
            ops.A: -spec.rates,
        },
    )
    mixer.finish(spec.project_out, normed(mixer, spec.norm, y.floats, y.width, gate_in(gate.floats, ops.SIGMOID)))
