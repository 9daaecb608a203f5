"""Latent attention against plain attention over keys and values that are made from the latent first."""

from __future__ import annotations

import math

import numpy as np
import pytest

from archs.hparams.file_keys import Keys
from quants import from_array
from runtime.decoder import token_mixer as latent_attention
from runtime.mixers.latent_attention import attention_scale
from runtime.model import RunningModel
from runtime.rope import apply_rope, rope_table

WIDTH, HEADS, LATENT, PLAIN, ROTATED, VALUE, QUERY = 16, 3, 10, 6, 4, 5, 7
RNG = np.random.default_rng(4)


def array(*shape):
    return (RNG.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


SHAPES = {
    "attn_kv_a_mqa": (LATENT + ROTATED, WIDTH),
    "attn_k_b": (HEADS, LATENT, PLAIN),
    "attn_v_b": (HEADS, VALUE, LATENT),
    "attn_output": (WIDTH, HEADS * VALUE),
    "attn_kv_a_norm": (LATENT,),
}
QUERIES = {
    "direct": {"attn_q": (HEADS * (PLAIN + ROTATED), WIDTH)},
    "low rank": {"attn_q_a": (QUERY, WIDTH), "attn_q_a_norm": (QUERY,), "attn_q_b": (HEADS * (PLAIN + ROTATED), QUERY)},
}
KEYS = {
    "embedding_length": WIDTH,
    "block_count": 1,
    "attention.head_count": HEADS,
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": LATENT,
    "attention.key_length_mla": PLAIN + ROTATED,
    "rope.dimension_count": ROTATED,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


def model_of(shapes):
    tensors = {f"blk.0.{name}.weight": 2 * array(*shape) for name, shape in shapes.items()}
    tensors["token_embd.weight"] = array(4, WIDTH)
    metadata = {"general.architecture": "deepseek2"} | {f"deepseek2.{key}": value for key, value in KEYS.items()}
    return RunningModel(metadata, {name: from_array(name, values) for name, values in tensors.items()})


def rms(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def plainly(model, x):
    """Keys and values for every head and token, then softmax, in float64."""

    def weight(name):
        return model.network.layers[0].array(f"{name}.weight").astype(np.float64)

    n = len(x)
    x = x.astype(np.float64)
    cos, sin = rope_table(ROTATED, 10_000.0, None, None, np.arange(n))
    asked = (
        x @ weight("attn_q").T
        if "attn_q.weight" in model.network.layers[0]
        else (rms(x @ weight("attn_q_a").T, weight("attn_q_a_norm")) @ weight("attn_q_b").T)
    )
    q = asked.reshape(n, HEADS, -1)
    q_rotated = apply_rope(q[:, :, PLAIN:].astype(np.float32), cos, sin, "adjacent")
    compressed = x @ weight("attn_kv_a_mqa").T
    latent = rms(compressed[:, :LATENT], weight("attn_kv_a_norm"))
    k_rotated = apply_rope(compressed[:, None, LATENT:].astype(np.float32), cos, sin, "adjacent")
    out = np.zeros((n, HEADS, VALUE))
    for head in range(HEADS):
        k = np.concatenate((latent @ weight("attn_k_b")[head], k_rotated[:, 0]), 1)
        v = latent @ weight("attn_v_b")[head].T
        scores = np.concatenate((q[:, head, :PLAIN], q_rotated[:, head]), 1) @ k.T / math.sqrt(PLAIN + ROTATED)
        scores[np.triu_indices(n, 1)] = -np.inf
        shares = np.exp(scores - scores.max(1, keepdims=True))
        out[:, head] = shares / shares.sum(1, keepdims=True) @ v
    return out.reshape(n, -1) @ weight("attn_output").T


@pytest.mark.parametrize("queries", QUERIES)
def test_is_plain_attention(queries):
    model = model_of(SHAPES | QUERIES[queries])
    x = array(9, WIDTH)
    found = latent_attention(model.new_pass(1, 9), model.network.layers[0], x)
    np.testing.assert_allclose(found, plainly(model, x), rtol=1e-5, atol=1e-5)


def test_from_a_cache_and_for_several_texts():
    model = model_of(SHAPES | QUERIES["direct"])
    texts = [array(7, WIDTH), array(7, WIDTH)]
    whole = [latent_attention(model.new_pass(1, 7), model.network.layers[0], x) for x in texts]
    both = latent_attention(model.new_pass(2, 7), model.network.layers[0], np.concatenate(texts))
    np.testing.assert_allclose(both, np.concatenate(whole), rtol=1e-5, atol=1e-6)
    cache, layer = model.new_cache(), model.network.layers[0]
    for start, stop in ((0, 4), (4, 5), (5, 7)):
        step = latent_attention(model.new_pass(1, stop - start, cache), layer, texts[0][start:stop])
        np.testing.assert_allclose(step, whole[0][start:stop], rtol=1e-5, atol=1e-6)
    assert cache.length == 7


def test_yarn_raises_the_scale_by_the_square_of_its_temperature():
    keys = {"rope.scaling.factor": 40.0, "rope.scaling.yarn_log_multiplier": 0.0707}
    found = attention_scale(Keys("deepseek2", {f"deepseek2.{key}": value for key, value in keys.items()}), 192)
    assert found == pytest.approx((0.0707 * math.log(40) + 1) ** 2 / math.sqrt(192))
    assert attention_scale(Keys("deepseek2", {}), 192) == pytest.approx(192**-0.5)
