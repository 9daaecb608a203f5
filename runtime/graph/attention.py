"""Self-attention of a layer as operations, with all family-specific steps on queries, keys and values."""

from ..layer import Layer
from . import operations as op
from .builder import Builder
from .indexer import chosen_blocks
from .operations import Value


def attention(b: Builder, layer: Layer, x: Value) -> Value:
    """Return self-attention over x, with its output projection."""
    own, block, hparams, start = b.numbers(layer), b.network.block, b.network.hparams, len(b.nodes)
    if own.kv_source_layer is not None:
        return _with_shared_keys(b, layer, x)
    q, k, v = queries_keys_values(b, layer, x)
    gate = None
    for step in block.qkv_steps:
        if step == "clamp" and hparams.clamp:
            parts = zip(_NAMES, (q, k, v), strict=True)
            q, k, v = (b.add(f"{name}_clamped", op.Clamp(part, hparams.clamp)) for name, part in parts)
        elif step == "gates":
            both, width = q, q.shape[1] // 2
            q = b.add("Qcur", op.Columns(both, 0, width))
            gate = b.add("gate", op.Columns(both, width, 2 * width))
        elif step == "norm":
            q, k = (_head_norm(b, layer, role, part) for role, part in (("attn_q_norm", q), ("attn_k_norm", k)))
        elif step == "norm_values":
            v = b.add("Vcur_normed", op.PlainNorm(v, hparams.eps))
        elif step == "norm_without_weights" and own.qk_l2_norm:
            q, k = (
                b.add(f"{name}_normed", op.PlainNorm(part, hparams.eps)) for name, part in (("Qcur", q), ("Kcur", k))
            )
        elif step == "rope" and own.rotates:
            q, k = (b.add(f"{name}_rope", op.Rope(part, own)) for name, part in (("Qcur", q), ("Kcur", k)))
    if block.query_scale is not None:
        q = b.add("Qcur_attn_temp_scaled", op.ScaleQueries(q, own.rotates))
    v = b.scaled(v, hparams.value_scale, "Vcur_scaled")
    chosen = chosen_blocks(b, layer, x) if "indexer.k_proj.weight" in layer else None
    mixed = b.add("kqv_out", op.Attention(q, k, v, x, layer, own, chosen))
    return projected(b, layer, b.enclose("attention", layer, start, (x,), gated(b, layer, x, mixed, gate)))


_NAMES = ("Qcur", "Kcur", "Vcur")


def queries_keys_values(b: Builder, layer: Layer, x: Value) -> tuple[Value, Value, Value]:
    """Return heads of queries, keys and values, from one fused projection or three."""
    own = b.numbers(layer)
    splits = (own.heads, own.key_width), (own.kv_heads, own.key_width), (own.kv_heads, own.value_width)
    roles = ("attn_q", "attn_k", "attn_v")
    if "attn_qkv.weight" in layer:
        fused, parts, start = b.linear(layer, "attn_qkv", x, "wqkv"), [], 0
        for name, role, split in zip(_NAMES, roles, splits, strict=True):
            stop = start + split[0] * split[1]
            part = b.add(name, op.Columns(fused, start, stop, split))
            if f"{role}.lora_a" in layer:
                part = b.add(f"{name}_lora", op.Adapted(part, x, layer, role))
            parts.append(part)
            start = stop
        return parts[0], parts[1], parts[2]
    name = "Qcur_full" if "gates" in b.network.block.qkv_steps else "Qcur"
    q = b.linear(layer, "attn_q", x, name, (own.heads, -1))
    k = b.linear(layer, "attn_k", x, "Kcur", (own.kv_heads, -1))
    v = b.linear(layer, "attn_v", x, "Vcur", (own.kv_heads, -1)) if "attn_v.weight" in layer else k
    return q, k, v  # keys are also values if there are no others


def _head_norm(b: Builder, layer: Layer, role: str, x: Value) -> Value:
    name = {"attn_q_norm": "Qcur_normed", "attn_k_norm": "Kcur_normed"}[role]
    return b.add(name, op.HeadNorm(x, layer, role)) if f"{role}.weight" in layer else x


def gated(b: Builder, layer: Layer, x: Value, mixed: Value, gate: Value | None) -> Value:
    """Return attention's output, through gates and a norm if the layer has them."""
    if "attn_gate.weight" in layer:
        gate = b.linear(layer, "attn_gate", x, "attn_gate")
    if gate is not None:
        mixed = b.add("attn_gated", op.ScaleByGate(mixed, gate, b.network.block.attention_gate))
    return b.norm_if_there(layer, "attn_sub_norm", mixed)


def projected(b: Builder, layer: Layer, mixed: Value) -> Value:
    """Return the output projection."""
    return b.linear(layer, "attn_output", mixed, "attn_out")


def _with_shared_keys(b: Builder, layer: Layer, x: Value) -> Value:
    """Return self-attention of a layer that reuses the keys and values of an earlier one."""
    own, start = b.numbers(layer), len(b.nodes)
    q = b.linear(layer, "attn_q", x, "Qcur", (own.heads, -1))
    q = _head_norm(b, layer, "attn_q_norm", q)
    if own.rotates:
        q = b.add("Qcur_rope", op.Rope(q, own))
    mixed = b.add("kqv_out", op.SharedAttention(q, own))
    return projected(b, layer, b.enclose("attention", layer, start, (x,), mixed))
