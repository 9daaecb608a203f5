"""Multi-head latent attention (DeepSeek V2, V3): keys and values of all heads are made from one narrow latent vector.

Source: transformers `models/deepseek_v2/modeling_deepseek_v2.py`. What is cached is the latent and the one rotated
key; the matrices that widen the latent are multiplied into the query and the result instead (section 2.1 of the
DeepSeek V2 report), so every head attends to the same narrow keys.
"""

import numpy as np

from archs.file_keys import Keys
from archs.hyper import LayerHyper

from .arrays import Floats
from .attention import attend
from .indexer import chosen_gated_pools, chosen_keys, gated_keys, indexer_keys
from .layer import Layer, Pass
from .rope import apply_rope, yarn_mscale
from .self_attention import projected, temperature


def latent_attention(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """Self-attention of one layer over x (tokens, width), with its output projection: float32 (tokens, width)."""
    keys, own = forward.keys, forward.numbers(layer)
    latent_width, rotated = latent_size(keys, own, "attention.kv_lora_rank"), own.rope_width
    key_width = latent_size(keys, own, "attention.key_length_mla")
    eps = float(keys.get("attention.latent_norm_epsilon") or keys.need("attention.layer_norm_rms_epsilon"))

    low, name = x, "attn_q"
    if "attn_q_a.weight" in layer:
        low, name = forward.norm(layer, "attn_q_a_norm", forward.project(layer, "attn_q_a", x), eps), "attn_q_b"
    q = forward.project(layer, name, low).reshape(len(x), own.heads, key_width)
    plain, q_rotated = (np.ascontiguousarray(part) for part in np.split(q, [key_width - rotated], axis=2))

    compressed = forward.project(layer, "attn_kv_a_mqa", x)
    latent = forward.norm(layer, "attn_kv_a_norm", np.ascontiguousarray(compressed[:, :latent_width]), eps)
    k_rotated = forward.norm(layer, "attn_k_norm", np.ascontiguousarray(compressed[:, None, latent_width:]))

    for part in (q_rotated, k_rotated) if own.rotates else ():
        apply_rope(part, *forward.rope(own), forward.hyper.rope, forward.threads)

    query = np.concatenate((_per_head(forward, layer, "attn_k_b", plain), q_rotated), axis=2)
    factors = temperature(forward, own.rotates)
    if factors is not None:
        query *= factors[:, None, None]
    key = np.concatenate((latent[:, None], k_rotated), axis=2)
    indexes = "indexer.attn_k.weight" in layer
    pools = "indexer_compressor_gate.weight" in layer
    kept = gated_keys if pools else indexer_keys
    index = kept(forward, layer, x) if indexes else key[:, :, :0]
    if forward.cache is not None:  # in place of values, which are a part of the keys
        key, index = forward.cache.append(layer.index, key, index)
    if indexes:
        forward.hidden_keys = (chosen_gated_pools if pools else chosen_keys)(forward, layer, x, low, index)
    scale, sinks = attention_scale(keys, key_width), layer.array("attn_sinks.weight")
    if forward.hidden_keys is None or own.window is not None:
        mixed = attend(
            query, key, key[:, :, :latent_width], q_positions=forward.positions, scale=scale, sequences=forward.texts,
            window=own.window, sinks=sinks, threads=forward.threads,
        )  # fmt: skip
    else:  # each text has keys of its own
        parts = zip(*(np.split(each, forward.texts) for each in (query, key)), forward.hidden_keys, strict=True)
        mixed = np.concatenate([
            attend(
                q, k, k[:, :, :latent_width], q_positions=forward.positions, scale=scale, threads=forward.threads,
                sinks=sinks, bias=np.broadcast_to(hidden, (own.heads, *hidden.shape)),
            ) for q, k, hidden in parts
        ])  # fmt: skip
    values = _per_head(forward, layer, "attn_v_b", mixed.reshape(len(x), own.heads, latent_width))
    return projected(forward, layer, x, values.reshape(len(x), -1), None)


def latent_size(keys: Keys, own: LayerHyper, key: str) -> int:
    """A width, which layers with a window may have of their own (dots3-note)."""
    local = keys.get(f"{key}_swa") if own.window is not None else None
    return int(keys.need(key) if local is None else local)


def widened_attention(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """The same of files with one matrix that widens the latent: each head has keys and values.

    Those are MiniCPM 3, PLM, and DeepSeek as it was converted until April 2025.
    """
    keys, own = forward.keys, forward.numbers(layer)
    latent_width, rotated = int(keys.need("attention.kv_lora_rank")), own.rope_width
    eps = float(keys.get("attention.latent_norm_epsilon"))
    low, name = x, "attn_q"
    if "attn_q_a.weight" in layer:
        low, name = forward.norm(layer, "attn_q_a_norm", forward.project(layer, "attn_q_a", x), eps), "attn_q_b"
    q = forward.project(layer, name, low).reshape(len(x), own.heads, own.key_width)
    compressed = forward.project(layer, "attn_kv_a_mqa", x)
    latent = forward.norm(layer, "attn_kv_a_norm", np.ascontiguousarray(compressed[:, :latent_width]), eps)
    q_rotated, k_rotated = (
        np.ascontiguousarray(part) for part in (q[:, :, -rotated:], compressed[:, None, latent_width:])
    )
    for part in (q_rotated, k_rotated):
        apply_rope(part, *forward.rope(own), forward.hyper.rope, forward.threads)

    plain = own.key_width - rotated
    wide = forward.project(layer, "attn_kv_b", latent).reshape(len(x), own.heads, -1)
    query = np.concatenate((q[:, :, :plain], q_rotated), axis=2)
    key = np.concatenate((wide[:, :, :plain], np.broadcast_to(k_rotated, q_rotated.shape)), axis=2)
    value = np.ascontiguousarray(wide[:, :, plain:])
    if forward.cache is not None:
        key, value = forward.cache.append(layer.index, key, value)
    mixed = attend(
        query, key, value, q_positions=forward.positions, scale=attention_scale(keys, own.key_width),
        sequences=forward.texts,
        threads=forward.threads,
    )  # fmt: skip
    return forward.project(layer, "attn_output", mixed.reshape(len(x), -1))


def _per_head(forward: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    """x (tokens, heads, width) times each head's own matrix of a weight (heads, out, width): (tokens, heads, out)."""
    heads = range(x.shape[1])
    return np.stack([forward.project_expert(layer, name, np.ascontiguousarray(x[:, i]), i) for i in heads], axis=1)


def attention_scale(keys: Keys, key_width: int) -> float:
    """1 / sqrt(width of a key), raised with the square of yarn's temperature where the model was stretched by it."""
    multiplier = 10 * float(keys.get("rope.scaling.yarn_log_multiplier"))  # DeepSeek's mscale_all_dim
    temperature = yarn_mscale(float(keys.get("rope.scaling.factor")), multiplier) if multiplier else 1.0
    return float(keys.get("attention.scale") or key_width**-0.5 * temperature**2)
