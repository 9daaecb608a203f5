"""State-space mixers (Mamba, Mamba-2) and short convolutions as operations.

Source: transformers `models/mamba/modeling_mamba.py`, `models/mamba2/`, `models/plamo2/`, `models/lfm2/`.
"""

from collections.abc import Sequence

from ..layer import Layer
from . import operations as op
from . import recurrent_operations as rec
from .builder import Builder, has
from .operations import Value


def mamba(b: Builder, layer: Layer, x: Value) -> Value:
    """Build Mamba (Gu and Dao 2023): every channel has its own time step and decays."""
    keys, start = b.network.keys, len(b.nodes)
    inner, size, rank = (int(keys.need(f"ssm.{key}")) for key in ("inner_size", "state_size", "time_step_rank"))
    both = b.linear(layer, "ssm_in", x, "mamba_in_proj")
    inputs = b.add("mamba_x_split", op.Columns(both, 0, inner))
    gate = b.add("mamba_z_split", op.Columns(both, inner, 2 * inner))
    inputs = convolved(b, layer, "ssm_conv1d", inputs)
    narrow = b.linear(layer, "ssm_x", inputs, "mamba_bcdt_proj")
    dt, B, C = _narrow(b, layer, narrow, {"dt": rank, "b": size, "c": size})
    dt = b.add("mamba_dt_softplus", op.Activate(b.linear(layer, "ssm_dt", dt, "mamba_dt_proj"), "softplus"))
    y = _with_inputs(b, layer, b.add("mamba_ssm_scan", rec.ChannelScan(inputs, layer, dt, B, C)), inputs)
    y = b.add("mamba_y_swiglu_z", op.Gated(gate, y, "silu"))
    return b.enclose("mamba", layer, start, (x,), _out(b, layer, y))


def mamba2(b: Builder, layer: Layer, x: Value) -> Value:
    """Build Mamba-2 (Dao and Gu 2024): one time step and one decay for each head of channels."""
    keys, start = b.network.keys, len(b.nodes)
    inner, size, heads = (int(keys.need(f"ssm.{key}")) for key in ("inner_size", "state_size", "time_step_rank"))
    groups = int(keys.get("ssm.group_count"))
    all_of = b.linear(layer, "ssm_in", x, "mamba_in_proj")
    wide = inner + 2 * groups * size
    gate = b.add("mamba_z_split", op.Columns(all_of, 0, inner))
    mixed = b.add("mamba_xBC_split", op.Columns(all_of, inner, inner + wide))
    dt = b.add("mamba_dt_raw", op.Columns(all_of, inner + wide, all_of.width))
    mixed = convolved(b, layer, "ssm_conv1d", mixed)
    inputs = b.add("mamba_x", op.Columns(mixed, 0, inner, (heads, inner // heads)))
    B = b.add("mamba_B", op.Columns(mixed, inner, inner + groups * size, (groups, size)))
    C = b.add("mamba_C", op.Columns(mixed, inner + groups * size, wide, (groups, size)))
    if "ssm_dt.bias" in layer:
        dt = b.add("mamba_dt_biased", op.AddWeight(dt, layer, "ssm_dt.bias"))
    dt = b.add("mamba_dt_softplus", op.Activate(dt, "softplus"))
    low, high = (float(keys.get(f"ssm.time_step_{end}")) for end in ("min", "max"))
    if (low, high) != (0.0, float("inf")):
        dt = b.add("mamba_dt_clamped", op.Clamp(dt, high, low))
    y = _heads_with_inputs(b, layer, inputs, (dt, B, C))
    return b.enclose("mamba2", layer, start, (x,), _out(b, layer, _gated(b, layer, y, gate)))


def _out(b: Builder, layer: Layer, y: Value) -> Value:
    return b.linear(layer, "ssm_out", y, "ssm_out" if has(layer, "attn_output") else "mamba_out")


def _gated(b: Builder, layer: Layer, y: Value, gate: Value) -> Value:
    """Return silu(gate) * y under a norm of each group; some models norm before they gate, some don't norm."""
    normed, before = "ssm_norm.weight" in layer, bool(b.network.keys.get("ssm.norm_before_gate"))
    y = _group_norm(b, layer, y) if normed and before else y
    y = b.add("mamba_y_swiglu_z", op.Gated(gate, y, "silu"))
    return _group_norm(b, layer, y) if normed and not before else y


def _group_norm(b: Builder, layer: Layer, y: Value) -> Value:
    width = layer.need("ssm_norm.weight").shape[-1]
    return b.add("mamba_normed", rec.GroupNorm(y, layer, "ssm_norm", b.network.hparams.eps, width))


def mamba_of_heads(b: Builder, layer: Layer, x: Value) -> Value:
    """Build PLaMo 2's mixer: heads as Mamba-2's, with normed B, C and steps from a low-rank projection."""
    keys, start = b.network.keys, len(b.nodes)
    inner, size, heads = (int(keys.need(f"ssm.{key}")) for key in ("inner_size", "state_size", "time_step_rank"))
    width = inner // heads
    both = b.linear(layer, "ssm_in", x, "mamba_in_proj", (heads, 2 * width))  # a head's gate, then its inputs
    gate = b.add("mamba_z_split", op.Columns(both, 0, width, (inner,)))
    inputs = b.add("mamba_x_split", op.Columns(both, width, 2 * width, (inner,)))
    inputs = convolved(b, layer, "ssm_conv1d", inputs)
    narrow = b.linear(layer, "ssm_x", inputs, "mamba_bcdt_proj")
    B, C, dt = _narrow(b, layer, narrow, {"b": size, "c": size, "dt": narrow.width - 2 * size})
    dt = b.add("mamba_dt_softplus", op.Activate(b.linear(layer, "ssm_dt", dt, "mamba_dt_proj"), "softplus"))
    B, C = (b.add(f"mamba_{name}_heads", op.Reshape(part, (1, size))) for name, part in (("B", B), ("C", C)))
    inputs = b.add("mamba_x", op.Reshape(inputs, (heads, width)))
    y = b.add("mamba_y_swiglu_z", op.Gated(gate, _heads_with_inputs(b, layer, inputs, (dt, B, C)), "silu"))
    return b.enclose("mamba of heads", layer, start, (x,), b.linear(layer, "ssm_out", y, "mamba_out"))


def short_convolution(b: Builder, layer: Layer, x: Value) -> Value:
    """Build LFM2's mixer: a gated convolution over the last few tokens, gated again."""
    start, width = len(b.nodes), x.width
    bcx = b.linear(layer, "shortconv.in_proj", x, "conv.in_proj")
    before, after, values = (
        b.add(f"conv.{n}", op.Columns(bcx, i * width, i * width + width)) for i, n in enumerate("bcx")
    )
    mixed = b.add("conv.bx", op.Multiply(values, before))
    mixed = b.add("conv.conv", rec.Convolution(mixed, layer, ("shortconv.conv",)))
    mixed = b.add("conv.gated", op.Multiply(mixed, after))
    out = b.linear(layer, "shortconv.out_proj", mixed, "conv.out_proj")
    return b.enclose("short convolution", layer, start, (x,), out)


def convolved(b: Builder, layer: Layer, role: str, x: Value) -> Value:
    """Return silu of a convolution."""
    return b.add("mamba_conv1d_silu", op.Activate(b.add("mamba_conv1d", rec.Convolution(x, layer, (role,))), "silu"))


def _narrow(b: Builder, layer: Layer, x: Value, widths: dict[str, int]) -> Sequence[Value]:
    """Return steps, B and C from one low-rank projection, with their norms."""
    keys, parts, at = b.network.keys, [], 0
    for name, width in widths.items():
        shown = name if name == "dt" else name.upper()
        part = b.add(f"mamba_{shown}_raw", op.Columns(x, at, at + width))
        if "ssm_in.weight" in layer and keys.get("ssm.dt_b_c_rms"):
            part = b.add(f"mamba_{shown}_rms", op.PlainNorm(part, float(keys.get("ssm.dt_b_c_rms_epsilon"))))
        parts.append(b.norm(layer, f"ssm_{name}_norm", part, f"mamba_{shown}_normed"))
        at += width
    return parts


def _heads_with_inputs(b: Builder, layer: Layer, x: Value, steps: tuple[Value, Value, Value]) -> Value:
    y = _with_inputs(b, layer, b.add("mamba_ssm_scan", rec.HeadScan(x, layer, *steps)), x)
    return b.add("mamba_y_view", op.Reshape(y, (x.width,)))


def _with_inputs(b: Builder, layer: Layer, y: Value, inputs: Value) -> Value:
    """Return y + D * inputs."""
    return b.add("mamba_y_add_d", op.Add(y, b.add("mamba_x_d", op.ScaleBy(inputs, layer, "ssm_d"))))
