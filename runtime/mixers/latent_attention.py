"""Multi-head latent attention (DeepSeek V2, V3): keys and values of all heads come from one narrow latent vector.

Source: transformers `models/deepseek_v2/modeling_deepseek_v2.py`. The cache holds the latent and the one rotated key;
the matrices that widen the latent are multiplied into the query and the result instead (section 2.1 of the DeepSeek V2
report), so every head attends to the same narrow keys.
"""

import numpy as np

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import LayerHParams

from ..arrays import Floats
from ..layer import ForwardContext, Layer
from ..rope import yarn_mscale
from .attention import AttentionOptions, attend


def attend_to_latents(forward: ForwardContext, layer: Layer, query: Floats, key: Floats) -> Floats:
    """Return attention of queries (tokens, heads, latent + rotated) to the keys of all tokens so far, (tokens, 1,
    latent + rotated): float32 (tokens, heads, latent).
    """
    keys, own = forward.keys, forward.numbers(layer)
    latent_width = size_of(keys, own, "attention.kv_lora_rank")
    scale = attention_scale(keys, size_of(keys, own, "attention.key_length_mla"))
    sinks = layer.array("attn_sinks.weight")
    if forward.hidden_keys is None or own.window is not None:
        options, texts, threads = AttentionOptions(window=own.window, sinks=sinks), forward.texts, forward.threads
        values = key[:, :, :latent_width]
        mixed = attend(query, key, values, forward.positions, scale, options, sequences=texts, threads=threads)
        return mixed.reshape(len(query), own.heads, latent_width)
    parts = []  # each text has keys of its own
    split = (np.split(each, forward.texts) for each in (query, key))
    for q, k, hidden in zip(*split, forward.hidden_keys, strict=True):
        options = AttentionOptions(sinks=sinks, bias=np.broadcast_to(hidden, (own.heads, *hidden.shape[1:])))
        v = k[:, :, :latent_width]
        parts.append(attend(q, k, v, forward.positions, scale, options, threads=forward.threads))
    return np.concatenate(parts).reshape(len(query), own.heads, latent_width)


def size_of(keys: Keys, own: LayerHParams, key: str) -> int:
    """Return a width; layers with a window may have one of their own (dots3-note)."""
    local = keys.get(f"{key}_swa") if own.window is not None else None
    return int(keys.need(key) if local is None else local)


def attend_to_widened(forward: ForwardContext, layer: Layer, query: Floats, key: Floats, value: Floats) -> Floats:
    """Return attention for files with one matrix that widens the latent: each head has keys and values."""
    if forward.cache is not None:
        key, value = forward.cache.append(layer.index, key, value)
    return attend(
        query,
        key,
        value,
        forward.positions,
        attention_scale(forward.keys, forward.numbers(layer).key_width),
        sequences=forward.texts,
        threads=forward.threads,
    )


def per_head(forward: ForwardContext, layer: Layer, name: str, x: Floats) -> Floats:
    """Return x (tokens, heads, width) times each head's own matrix of a weight (heads, out, width): (tokens, heads,
    out).
    """
    heads = range(x.shape[1])
    return np.stack([forward.project_expert(layer, name, np.ascontiguousarray(x[:, i]), i) for i in heads], axis=1)


def attention_scale(keys: Keys, key_width: int) -> float:
    """Return 1 / sqrt(width of a key), times the square of YaRN's factor in models extended by it."""
    multiplier = 10 * float(keys.get("rope.scaling.yarn_log_multiplier"))  # DeepSeek's mscale_all_dim
    temperature = yarn_mscale(float(keys.get("rope.scaling.factor")), multiplier) if multiplier else 1.0
    return float(keys.get("attention.scale") or key_width**-0.5 * temperature**2)
