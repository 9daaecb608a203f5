"""Indexers of sparse attention as operations, and attention to compressed entries (DeepSeek V4).

Source: transformers `models/deepseek_v32/`, `models/glm_moe_dsa/`, `models/glm5_next/`, `models/minimax_m3_vl/`,
`models/qwen4_exp/`, `models/deepseek_v4/modeling_deepseek_v4.py`.
"""

from ..layer import Layer
from . import indexer_operations as idx
from . import operations as op
from .builder import Builder, has
from .operations import Value

RATIOS = "attention.compress_ratios"


def latent_indexer_keys(b: Builder, layer: Layer, x: Value) -> Value:
    """Return the indexer's cached keys of x in latent attention: a key, and in GLM-5-Next as many gates."""
    keys = b.linear(layer, "indexer.attn_k", x, "indexer_k")
    eps = b.network.block.indexer_eps or b.network.hparams.eps
    keys = b.add("indexer_k_normed", idx.LayerNorm(keys, layer, "indexer.k_norm", eps))
    if has(layer, "indexer_compressor_gate"):
        keys = b.add("indexer_k_gate", op.Concat(keys, b.linear(layer, "indexer_compressor_gate", x)))
        return b.add("indexer_k_heads", op.Reshape(keys, (1, keys.width)))
    return b.add("indexer_k_rope", idx.IndexerRope(b.add("indexer_k_heads", op.Reshape(keys, (1, keys.width))), layer))


def chosen_latents(b: Builder, layer: Layer, x: Value, low: Value, cached: Value, width: int) -> Value:
    """Return the keys selected for tokens of x. low: the input of queries. width: of an indexer's key."""
    top_k, heads = (int(b.network.keys.need(f"attention.indexer.{key}")) for key in ("top_k", "head_count"))
    pools, size = has(layer, "indexer_compressor_gate"), 1
    if pools:
        size, width = int(b.network.keys.need("attention.indexer.kpool")), width // 2
    of = idx.Candidates(cached, layer, "weighted means" if pools else "values", top_k // size, size)
    candidates = b.add("indexer_candidates", of)
    queries = b.add("indexer_q_inp", idx.OnlyIf(low, candidates))
    queries = b.linear(layer, "indexer.attn_q_b", queries, "indexer_q", (heads, width))
    if not pools:
        queries = b.add("indexer_q_rope", idx.IndexerRope(queries, layer))
    weights = _head_weights(b, layer, x, candidates, heads * width)
    scores = b.add("indexer_score", idx.IndexerScores(queries, candidates, weights, size))
    return b.add("top_k", idx.TopKeys(scores, top_k // size, size, rest=pools))


def _head_weights(b: Builder, layer: Layer, x: Value, candidates: Value, width: int) -> Value:
    weights = b.linear(layer, "indexer.proj", b.add("indexer_inp", idx.OnlyIf(x, candidates)), "indexer_proj")
    return b.add("indexer_weights", op.Scale(weights, width**-0.5))


def chosen_blocks(b: Builder, layer: Layer, x: Value) -> Value:
    """Return the keys selected for tokens of x: best blocks of them (MiniMax M3), or best means of several (Qwen4
    Exp).
    """
    keys, pools = b.network.keys, b.network.keys.stored(RATIOS) is not None
    heads, top_k = (int(keys.need(f"attention.indexer.{key}")) for key in ("head_count", "top_k"))
    size = int(keys.of_layer(RATIOS, layer.index) if pools else keys.need("attention.indexer.block_size"))
    top_k = top_k // size if pools else top_k
    index = b.linear(layer, "indexer.k_proj", x, "indexer_k")
    width = index.width
    index = index if pools else b.norm(layer, "indexer.k_norm", index, "indexer_k_normed")
    index = b.add("indexer_k_heads", op.Reshape(index, (1, width)))
    index = index if pools else b.add("indexer_k_rope", idx.IndexerRope(index, layer))
    cached = b.add("indexer_k_cached", idx.CacheKeys(index, None, -1 - layer.index))
    candidates = b.add("indexer_candidates", idx.Candidates(cached, layer, "means" if pools else "blocks", top_k, size))
    queries = b.add("indexer_q_inp", idx.OnlyIf(x, candidates))
    queries = b.linear(layer, "indexer.q_proj", queries, "indexer_q", (heads, width))
    queries = b.norm(layer, "indexer.q_norm", queries, "indexer_q_normed")
    queries = b.add("indexer_q_rope", idx.IndexerRope(queries, layer))
    if pools:
        scores = b.add("indexer_score", idx.IndexerScores(queries, candidates, None, size))
        return b.add("top_k", idx.TopKeys(scores, top_k, size, rest=True))
    local = int(keys.need("attention.indexer.local_blocks"))
    scores = b.add("indexer_score", idx.BlockScores(queries, candidates, size, local))
    return b.add("top_k", idx.TopKeys(scores, top_k, size, heads=b.numbers(layer).heads // heads))


def compressed_attention(b: Builder, layer: Layer, x: Value) -> Value:
    """Return self-attention to a window of tokens and to compressed entries for blocks of them (DeepSeek V4).

    All heads share one key a token, which is also its value: the rotated part of attention's output is rotated back.
    """
    own, eps, keys = b.numbers(layer), b.network.hparams.eps, b.network.keys
    low = b.norm(layer, "attn_q_a_norm", b.linear(layer, "attn_q_a", x, "qr"), "qr_norm")
    q = b.linear(layer, "attn_q_b", low, "q", (own.heads, own.key_width))
    q = b.add("q_rope", idx.RopeTail(b.add("q_norm", op.PlainNorm(q, eps)), own))
    key = shared_keys(b, layer, x)
    if b.reads_blocks:
        mixed = b.add("attn_raw", idx.BlockAttention(q, key, layer))
    else:
        ratio, entries, chosen = int(keys.of_layer(RATIOS, layer.index)), None, None
        indexed = has(layer, "indexer.attn_q_b")
        if ratio:
            entries = _compressed(b, layer, "attn_compressor", x, ratio, "csa" if indexed else "hca")
            if indexed:
                chosen = _chosen_entries(b, layer, x, low, ratio)
        mixed = b.add("attn_raw", idx.CompressedAttention(q, key, layer, ratio, entries, chosen))
    mixed = b.add("attn_derope", op.Reshape(b.add("attn_back", idx.RopeTail(mixed, own, back=True)), (q.width,)))
    groups = int(keys.need("attention.output_group_count"))
    narrow = b.add("attn_wo_a", idx.GroupedLinear(mixed, layer, "attn_output_a", groups))
    return b.linear(layer, "attn_output_b", narrow, "attn_out")


def shared_keys(b: Builder, layer: Layer, x: Value) -> Value:
    """Return the one key of each token, shared by all heads."""
    key = b.norm(layer, "attn_kv_a_norm", b.linear(layer, "attn_kv", x, "kv"), "kv_norm")
    return b.add("kv_rope", idx.RopeTail(b.add("kv_heads", op.Reshape(key, (1, key.width))), b.numbers(layer)))


def _compressed(b: Builder, layer: Layer, role: str, x: Value, ratio: int, name: str) -> Value:
    values, gates = (b.linear(layer, f"{role}_{part}", x, f"{name}_state_{part}") for part in ("kv", "gate"))
    return b.add(f"{name}_state_compress", idx.Compress(values, layer, gates, role, ratio))


def _chosen_entries(b: Builder, layer: Layer, x: Value, low: Value, ratio: int) -> Value:
    top_k, heads = (int(b.network.keys.need(f"attention.indexer.{key}")) for key in ("top_k", "head_count"))
    entries = _compressed(b, layer, "indexer_compressor", x, ratio, "lid")
    candidates = b.add("lid_candidates", idx.Candidates(entries, layer, "entries", top_k, ratio))
    queries = b.add("lid_q_inp", idx.OnlyIf(low, candidates))
    queries = b.linear(layer, "indexer.attn_q_b", queries, "lid_q", (heads, -1))
    queries = b.add("lid_q_rope", idx.RopeTail(queries, b.numbers(layer)))
    weights = _head_weights(b, layer, x, candidates, queries.width)
    scores = b.add("lid_score", idx.IndexerScores(queries, candidates, weights, ratio))
    return b.add("lid_top_k", idx.TopKeys(scores, top_k))
