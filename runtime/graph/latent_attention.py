"""Multi-head latent attention (DeepSeek V2, V3) as operations: one low-rank latent for keys and values of all heads.

Source: transformers `models/deepseek_v2/modeling_deepseek_v2.py`. The cache holds the latent and the one rotated key;
the matrices that widen the latent are multiplied into the query and the result instead (section 2.1 of the DeepSeek V2
report), so every head attends to the same narrow keys.
"""

from ..layer import Layer
from ..mixers.latent_attention import size_of
from . import operations as op
from .attention import gated, projected
from .builder import Builder
from .indexer import chosen_latents, latent_indexer_keys
from .indexer_operations import CacheKeys
from .operations import Value


def latent_attention(b: Builder, layer: Layer, x: Value) -> Value:
    """Return self-attention of a layer over x, with its output projection."""
    keys, own, start = b.network.keys, b.numbers(layer), len(b.nodes)
    latent_width, rotated = size_of(keys, own, "attention.kv_lora_rank"), own.rope_width
    key_width = size_of(keys, own, "attention.key_length_mla")
    eps = float(keys.get("attention.latent_norm_epsilon") or keys.need("attention.layer_norm_rms_epsilon"))
    low, q = _queries(b, layer, x, key_width, eps)
    plain = b.add("q_nope", op.Columns(q, 0, key_width - rotated))
    q_rotated = b.add("q_pe", op.Columns(q, key_width - rotated, key_width))
    compressed = b.linear(layer, "attn_kv_a_mqa", x, "kv_cmpr_pe")
    latent = b.add("kv_cmpr", op.Columns(compressed, 0, latent_width, (1, latent_width)))
    latent = b.norm(layer, "attn_kv_a_norm", latent, eps=eps)
    width = compressed.width - latent_width
    k_rotated = b.add("k_pe", op.Columns(compressed, latent_width, compressed.width, (1, width)))
    k_rotated = b.norm(layer, "attn_k_norm", k_rotated)
    if own.rotates:
        q_rotated = b.add("q_pe_rope", op.Rope(q_rotated, own))
        k_rotated = b.add("k_pe_rope", op.Rope(k_rotated, own))
    query = b.add("Qcur", op.Concat(b.add("q_nope_absorbed", op.PerHead(plain, layer, "attn_k_b")), q_rotated))
    if b.network.block.query_scale is not None:
        query = b.add("Qcur_attn_temp_scaled", op.ScaleQueries(query, own.rotates))
    key = b.add("Kcur", op.Concat(latent, k_rotated))
    index = latent_indexer_keys(b, layer, x) if "indexer.attn_k.weight" in layer else None
    cached = b.add("k_all", CacheKeys(key, index, layer.index))  # in place of values, which are a part of the keys
    chosen = None if index is None else chosen_latents(b, layer, x, low, cached, index.width)
    mixed = b.add("kqv", op.LatentAttention(query, cached, layer, latent_width, chosen))
    mixed = gated(b, layer, x, b.add("kqv_out", op.PerHead(mixed, layer, "attn_v_b")), None)
    return projected(b, layer, b.enclose("latent attention", layer, start, (x,), mixed))


def widened_attention(b: Builder, layer: Layer, x: Value) -> Value:
    """Return latent attention of files with one matrix that widens the latent: each head has keys and values.

    Those are MiniCPM 3, PLM, and DeepSeek as it was converted until April 2025.
    """
    keys, own, start = b.network.keys, b.numbers(layer), len(b.nodes)
    latent_width, rotated = int(keys.need("attention.kv_lora_rank")), own.rope_width
    plain, eps = own.key_width - rotated, float(keys.get("attention.latent_norm_epsilon"))
    _, q = _queries(b, layer, x, own.key_width, eps)
    compressed = b.linear(layer, "attn_kv_a_mqa", x, "kv_cmpr_pe")
    latent = b.norm(layer, "attn_kv_a_norm", b.add("kv_cmpr", op.Columns(compressed, 0, latent_width)), eps=eps)
    q_rotated = b.add("q_pe", op.Columns(q, plain, own.key_width))
    width = compressed.width - latent_width
    k_rotated = b.add("k_pe", op.Columns(compressed, latent_width, compressed.width, (1, width)))
    q_rotated = b.add("q_pe_rope", op.Rope(q_rotated, own))
    k_rotated = b.add("k_pe_rope", op.Rope(k_rotated, own))
    wide = b.linear(layer, "attn_kv_b", latent, "kv", (own.heads, -1))
    query = b.add("Qcur", op.Concat(b.add("q_nope", op.Columns(q, 0, plain)), q_rotated))
    key = b.add("Kcur", op.Concat(b.add("k_nope", op.Columns(wide, 0, plain)), k_rotated))
    value = b.add("Vcur", op.Columns(wide, plain, wide.shape[1]))
    mixed = b.add("kqv_out", op.WidenedAttention(query, key, value, layer))
    return projected(b, layer, b.enclose("latent attention", layer, start, (x,), mixed))


def _queries(b: Builder, layer: Layer, x: Value, key_width: int, eps: float) -> tuple[Value, Value]:
    """Return the input of queries, low-rank in most models, and the queries."""
    low, role = x, "attn_q"
    if "attn_q_a.weight" in layer:
        low, role = b.norm(layer, "attn_q_a_norm", b.linear(layer, "attn_q_a", x), eps=eps), "attn_q_b"
    return low, b.linear(layer, role, low, "q", (b.numbers(layer).heads, key_width))
