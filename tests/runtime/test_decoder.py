"""Details of the graph that few models have."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quants import from_array
from quants.errors import ModelError
from runtime.graph import text
from runtime.mixers import self_attention
from runtime.model import RunningModel

RNG = np.random.default_rng(12)
WIDTH, VOCABULARY = 8, 11
LAYER = {
    "attn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH, WIDTH),
    "attn_v": (WIDTH, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_norm": (WIDTH,),
    "ffn_up": (10, WIDTH),
    "ffn_gate": (10, WIDTH),
    "ffn_down": (WIDTH, 10),
}


def array(*shape):
    return (2 * RNG.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def model_of(name, shapes, **keys):
    metadata = {"general.architecture": name} | {
        f"{name}.{key}": value
        for key, value in {
            "embedding_length": WIDTH,
            "block_count": 1,
            "attention.head_count": 2,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.layer_norm_epsilon": 1e-6,
            **keys,
        }.items()
    }
    shapes = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)} | shapes
    return RunningModel(metadata, {name: from_array(name, array(*shape)) for name, shape in shapes.items()})


def layer(**more):
    return {f"blk.0.{name}.weight": shape for name, shape in (LAYER | more).items()}


def test_a_tied_head_may_have_a_bias():
    model = model_of("llama", layer() | {"output.bias": (VOCABULARY,)})
    bias = model.network.global_tensors.array("output.bias")
    without = {name: tensor for name, tensor in model.tensors.items() if name != "output.bias"}
    plain = RunningModel(model.metadata, without)
    np.testing.assert_allclose(model.logits([1, 2, 3]), plain.logits([1, 2, 3]) + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["olmo", "olmoe"])
def test_values_are_clamped_before_norms_or_after_them(name, monkeypatch):
    model = model_of(name, layer(attn_q_norm=(WIDTH,), attn_k_norm=(WIDTH,)), **{"attention.clamp_kqv": 0.25})
    seen = {}

    def attend(q, k, v, *rest, **more):
        seen.update(q=q, v=v)
        return q.reshape(len(q), -1)

    monkeypatch.setattr(self_attention, "attend", attend)
    monkeypatch.setattr(text, "apply_rope", lambda x, *rest: x)
    model.logits([1, 2, 3])
    assert np.abs(seen["v"]).max() == 0.25
    assert (np.abs(seen["q"]).max() == 0.25) == (name == "olmoe")


def test_encoders_see_both_sides_and_have_no_cache():
    shapes = {
        name.replace("attn_norm", "attn_output_norm").replace("ffn_norm", "layer_output_norm"): shape
        for name, shape in layer().items()
        if "gate" not in name
    }
    model = model_of("bert", shapes)
    found, changed = model.logits([1, 2, 3]), model.logits([1, 2, 4])
    assert found.shape == (3, WIDTH)
    assert np.abs(found[0] - changed[0]).max() > 1e-4
    with pytest.raises(ModelError, match="reads a text as a whole"):
        model.forward([1], model.new_cache())


def test_norm_of_a_single_key_head():
    shapes = layer(attn_q_norm=(2, 4), attn_k_norm=(1, 4), attn_k=(4, WIDTH), attn_v=(4, WIDTH))
    found = model_of("command-r", shapes, **{"attention.head_count_kv": 1}).logits([1, 2, 3])
    assert np.isfinite(found).all()


def test_distance_penalties_of_falcon_are_bfloat16_from_the_texts_start():
    heads = {"attention.head_count": 16, "embedding_length": 64, "attention.max_alibi_bias": 8.0}
    wide = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)} | layer()
    wide = {name: tuple(64 if size == WIDTH else size for size in shape) for name, shape in wide.items()}
    falcon, mpt = (model_of(name, wide, **heads) for name in ("falcon", "mpt"))
    _, found = self_attention.distance_penalties(falcon.network, falcon.network.hparams.layers[0], 2, 301)
    assert found.shape == (16, 2, 301)
    # 2^-0.5 is 0.70703125 in bfloat16, 3 times that 2.125; 299 and half of it are 300 and 150; q·k is scaled by 1/2
    np.testing.assert_array_equal(found[0, 0, [1, 3]], np.float32([0.70703125, 2.125]) / 2)
    assert found[1, 1, 299] == 75
    slopes, _ = self_attention.distance_penalties(mpt.network, mpt.network.hparams.layers[0], 2, 301)
    np.testing.assert_allclose(slopes[:2], [2**-0.5, 0.5])
