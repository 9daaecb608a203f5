"""Multi-head latent attention (DeepSeek V2, V3): keys and values of all heads are made from one narrow latent vector.

Reference: transformers `models/deepseek_v2/modeling_deepseek_v2.py`. What is cached is the latent and the one rotated
key; the matrices that widen the latent are multiplied into the query and the result instead (section 2.1 of the
DeepSeek V2 report), so every head attends to the same narrow keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.hyper import Keys

from .attention import attend
from .matmul import matmul_experts
from .rope import apply_rope, yarn_mscale

if TYPE_CHECKING:
    from .graph import Layer, Pass

Floats = NDArray[np.float32]


def latent_attention(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """Self-attention of one layer, with its output projection: float32 (tokens, width)."""
    from .graph import temperature

    model, hyper, own = run.model, run.model.hyper, run.model.hyper.layers[index]
    keys = Keys(model.architecture.name, model.metadata)
    latent_width, rotated = int(keys.need("attention.kv_lora_rank")), own.rope_width
    key_width = int(keys.need("attention.key_length_mla"))
    eps = float(keys.get("attention.latent_norm_epsilon", hyper.eps))

    if "attn_q_a.weight" in layer:
        q = run.norm(layer, "attn_q_a_norm", run.project(layer, "attn_q_a", x), eps)
        q = run.project(layer, "attn_q_b", q)
    else:
        q = run.project(layer, "attn_q", x)
    q = q.reshape(len(x), own.heads, key_width)
    plain, q_rotated = q[:, :, :-rotated], np.ascontiguousarray(q[:, :, -rotated:])

    compressed = run.project(layer, "attn_kv_a_mqa", x)
    latent = run.norm(layer, "attn_kv_a_norm", np.ascontiguousarray(compressed[:, :latent_width]), eps)
    k_rotated = np.ascontiguousarray(compressed[:, None, latent_width:])

    cos, sin = run.rope(own)
    apply_rope(q_rotated, cos, sin, model.architecture.block.rope)
    apply_rope(k_rotated, cos, sin, model.architecture.block.rope)

    query = np.concatenate((per_head(run, layer, "attn_k_b", plain), q_rotated), axis=2)
    warmth = temperature(run, own.rotates)
    if warmth is not None:
        query *= warmth[:, None, None]
    key = np.concatenate((latent[:, None], k_rotated), axis=2)
    if run.cache is not None:
        key, _ = run.cache.append(index, key, key[:, :, :0])  # the values are a part of the keys
    mixed = attend(
        query, key, key[:, :, :latent_width], q_positions=run.positions, scale=attention_scale(keys, key_width),
        sequences=run.texts,
    )  # fmt: skip
    values = per_head(run, layer, "attn_v_b", mixed.reshape(len(x), own.heads, latent_width))
    return run.project(layer, "attn_output", values.reshape(len(x), -1))


def per_head(run: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    """x (tokens, heads, width) times each head's own matrix of a weight (heads, out, width): (tokens, heads, out)."""
    weight = layer.need(f"{name}.weight")
    out = np.empty((len(x), weight.shape[0], weight.shape[1]), np.float32)
    for head in range(weight.shape[0]):
        values = np.ascontiguousarray(x[:, head])
        if run.model.observe:
            run.model.observe(weight.name, values, head, weight.shape[0])
        out[:, head] = matmul_experts(values, weight, head)
    return out


def attention_scale(keys: Keys, key_width: int) -> float:
    """1 / sqrt(width of a key), raised with the square of yarn's temperature where the model was stretched by it."""
    multiplier = 10 * float(keys.get("rope.scaling.yarn_log_multiplier", 0.0))  # DeepSeek's mscale_all_dim
    temperature = yarn_mscale(float(keys.get("rope.scaling.factor", 1.0)), multiplier) if multiplier else 1.0
    return float(keys.get("attention.scale", key_width**-0.5 * temperature**2))
