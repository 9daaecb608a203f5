"""Low-rank adapters: what PEFT's settings mean, what merging does, and that an adapter's file says the same."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from archs.config import normalized
from archs.families.deepseek2 import DEEPSEEK_V2
from archs.families.falcon import FALCON
from archs.families.gpt import GPT2
from archs.families.llama import LLAMA, MIXTRAL
from archs.lora import Adapter, adapter_of, adapter_tensors, merging
from archs.plans.text import map_tensors
from archs.spec import Architecture
from quants import Tensor, from_array
from quants.errors import ModelError
from tests.archs.prequantized.writers import CASES as QUANTIZED
from tests.archs.prequantized.writers import stored as stored_parts

Floats = NDArray[np.float32]
SETTINGS = {"peft_type": "LORA", "r": 2, "lora_alpha": 6}
CONFIG = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 10,
}
LLAMA_SHAPES = {
    "model.embed_tokens": (10, 8),
    "model.layers.0.input_layernorm": (8,),
    "model.layers.0.self_attn.q_proj": (8, 8),
    "model.layers.0.self_attn.k_proj": (4, 8),
    "model.layers.0.self_attn.v_proj": (4, 8),
    "model.layers.0.self_attn.o_proj": (8, 8),
    "model.layers.0.post_attention_layernorm": (8,),
    "model.layers.0.mlp.gate_proj": (12, 8),
    "model.layers.0.mlp.up_proj": (12, 8),
    "model.layers.0.mlp.down_proj": (8, 12),
    "model.norm": (8,),
    "lm_head": (10, 8),
}
Q, HEAD = "model.layers.0.self_attn.q_proj", "lm_head"


def values(name: str, shape: Sequence[int]) -> Floats:
    chance = np.random.default_rng(sum(name.encode()))
    return chance.standard_normal(shape).astype(np.float32)


def tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {f"{name}.weight": from_array(f"{name}.weight", values(name, shape)) for name, shape in shapes.items()}


def pair(module: str, outputs: int, inputs: int, rank: int = 2) -> dict[str, Tensor]:
    """The two halves under PEFT's names."""
    names = (f"base_model.model.{module}.lora_A.weight", f"base_model.model.{module}.lora_B.weight")
    shapes = ((rank, inputs), (outputs, rank))
    return {name: from_array(name, values(name, shape)) for name, shape in zip(names, shapes, strict=True)}


def adapter(stored: Mapping[str, Tensor], **settings: Any) -> Adapter:
    return adapter_of("adapter", {**SETTINGS, **settings}, stored)


def product(stored: Mapping[str, Tensor]) -> Floats:
    a, b = (tensor.float32() for tensor in stored.values())
    return b @ a


def merged(
    base: Mapping[str, Tensor], found: Adapter, strength: float = 1.0, architecture: Architecture = LLAMA
) -> dict[str, Tensor]:
    return dict(merging([(found, strength)])(architecture, normalized(CONFIG, architecture.defaults), base))


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6 / math.sqrt(2)),
        ({"alpha_pattern": {"q_proj": 1}}, 0.5),
        ({"alpha_pattern": {"k_proj": 1, r"layers\.0\..*": 4, "q_proj": 1}}, 2.0),
        ({"alpha_pattern": {"proj": 1}}, 3.0),  # the end of a path, not of a name
        ({"alpha_pattern": {"q_proj": 4}, "use_rslora": True}, 4 / math.sqrt(2)),
    ],
)
def test_scale(settings, scale):
    assert adapter(pair(Q, 8, 8), **settings).pairs[0].scale == pytest.approx(scale)


def test_rank_is_that_of_the_matrices():
    found = adapter(pair(Q, 8, 8, rank=3), rank_pattern={"q_proj": 3})
    assert found.pairs[0].scale == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "biases"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"lora_alpha": 0}, "lora_alpha"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"alpha_pattern": {"q_proj": "much"}}, "alpha_pattern"),
        ({"alpha_pattern": {"(": 2}}, "regular expression"),
    ],
)
def test_other_kinds_are_refused(settings, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        adapter(pair(Q, 8, 8), **settings)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (f"base_model.model.{Q}.lora_magnitude_vector", (8,), "DoRA"),
        (f"base_model.model.{Q}.lora_B.bias", (8,), "neither half"),
        (f"base_model.model.{HEAD}.lora_A.weight", (2, 8), "lora_B is missing"),
        (f"base_model.model.{Q}.lora_A.weight", (3, 8), "don't multiply"),
    ],
)
def test_tensors_that_make_no_sense_are_refused(name, shape, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        adapter(pair(Q, 8, 8) | {name: from_array(name, values(name, shape))})


def test_merging_adds_the_product():
    base, stored = tensors(LLAMA_SHAPES), pair(Q, 8, 8)
    found = merged(base, adapter(stored), strength=0.5)
    expected = base[f"{Q}.weight"].float32() + 1.5 * product(stored)
    np.testing.assert_allclose(found[f"{Q}.weight"].float32(), expected, rtol=1e-6)
    assert found[f"{Q}.weight"].float32(3, 5).tobytes() == found[f"{Q}.weight"].float32()[3:5].tobytes()
    assert all(found[name] is tensor for name, tensor in base.items() if name != f"{Q}.weight")


def test_rows_have_the_same_bits_however_they_are_asked_for():
    module = "model.layers.0.mlp.up_proj"
    base = tensors({module: (300, 200)})
    weight = merged(base, adapter(pair(module, 300, 200, rank=8)))[f"{module}.weight"]
    whole = weight.float32()
    for start, stop in [(0, 1), (5, 70), (63, 129), (128, 300), (299, 300)]:
        assert weight.float32(start, stop).tobytes() == whole[start:stop].tobytes()


def test_several_adapters_add_up():
    base, first, second = tensors(LLAMA_SHAPES), pair(Q, 8, 8), pair(Q, 8, 8, rank=1)
    change = merging([(adapter(first), 1.0), (adapter(second), -1.0)])
    found = change(LLAMA, normalized(CONFIG, LLAMA.defaults), base)[f"{Q}.weight"].float32()
    expected = base[f"{Q}.weight"].float32() + 3 * product(first) - 6 * product(second)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_other_prefixes_of_the_same_model_fit():
    bare = tensors({name.removeprefix("model."): shape for name, shape in LLAMA_SHAPES.items()})
    name = "layers.0.self_attn.q_proj.weight"
    assert not np.array_equal(merged(bare, adapter(pair(Q, 8, 8)))[name].float32(), bare[name].float32())


def test_whole_weights_replace_those_of_the_base():
    base, new = tensors(LLAMA_SHAPES), from_array("new", values("new", (10, 8)))
    for name in ("lm_head.weight", "lm_head.modules_to_save.weight", "lm_head.modules_to_save.default.weight"):
        found = merged(base, adapter(pair(Q, 8, 8) | {f"base_model.model.{name}": new}))
        assert np.array_equal(found["lm_head.weight"].float32(), new.float32())
        assert list(found) == list(base)


def test_embedding():
    """Its A has a column for each token, and its weight a row."""
    base = tensors(LLAMA_SHAPES)
    a, b = values("a", (2, 10)), values("b", (8, 2))
    prefix = "base_model.model.model.embed_tokens.lora_embedding_"
    found = adapter({f"{prefix}A": from_array("a", a), f"{prefix}B": from_array("b", b)})
    expected = base["model.embed_tokens.weight"].float32() + 3 * (b @ a).T
    np.testing.assert_allclose(merged(base, found)["model.embed_tokens.weight"].float32(), expected, rtol=1e-5)
    file = adapter_tensors(LLAMA, normalized(CONFIG, LLAMA.defaults), found).tensors
    assert np.array_equal(file["token_embd.weight.lora_a"].float32(), a.T)
    assert np.array_equal(file["token_embd.weight.lora_b"].float32(), b)


def test_a_tied_head_that_is_adapted_becomes_one_of_its_own():
    base = {name: tensor for name, tensor in tensors(LLAMA_SHAPES).items() if name != "lm_head.weight"}
    stored = pair(HEAD, 10, 8)
    found = merged(base, adapter(stored))
    embedding = base["model.embed_tokens.weight"].float32()
    np.testing.assert_allclose(found["lm_head.weight"].float32(), embedding + 3 * product(stored), rtol=1e-5)
    assert np.array_equal(found["model.embed_tokens.weight"].float32(), embedding)
    config = normalized({**CONFIG, "tie_word_embeddings": True}, LLAMA.defaults)
    with pytest.raises(ModelError, match="shares that weight"):
        adapter_tensors(LLAMA, config, adapter(stored))


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (pair("model.layers.7.self_attn.q_proj", 8, 8), "layers.7.self_attn.q_proj.weight"),
        (pair(Q, 16, 8), "[16, 8]"),
        ({"base_model.model.lm_head.weight": from_array("new", values("new", (12, 8)))}, "[12, 8]"),
    ],
)
def test_another_models_adapter_is_refused(stored, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        merged(tensors(LLAMA_SHAPES), adapter(stored))


def test_an_adapter_that_waits_for_its_tokens_is_not_merged():
    with pytest.raises(ModelError, match="invocation tokens"):
        merged(tensors(LLAMA_SHAPES), adapter(pair(Q, 8, 8), alora_invocation_tokens=[3, 4]))


GPT2_CONFIG = {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16, "layer_norm_epsilon": 1e-5}
GPT2_SHAPES = {"wte": (10, 8), "h.0.attn.c_attn": (8, 24), "h.0.attn.c_proj": (8, 8), "h.0.mlp.c_fc": (8, 32)}
FALCON_CONFIG = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "new_decoder_architecture": True,
    "num_hidden_layers": 1,
}
FALCON_SHAPES = {
    "transformer.word_embeddings": (10, 16),
    "transformer.h.0.self_attention.query_key_value": (32, 16),
    "transformer.h.0.mlp.dense_4h_to_h": (16, 64),
}
EXPERT = "model.layers.0.block_sparse_moe.experts"
CASES = {
    "llama": (
        LLAMA,
        CONFIG,
        LLAMA_SHAPES,
        {Q: (8, 8), "model.layers.0.self_attn.k_proj": (4, 8), HEAD: (10, 8), "model.layers.0.mlp.down_proj": (8, 12)},
    ),
    "gpt2": (
        GPT2,
        GPT2_CONFIG,
        GPT2_SHAPES,
        {
            "transformer.h.0.attn.c_attn": (24, 8),
            "transformer.h.0.attn.c_proj": (8, 8),
            "transformer.h.0.mlp.c_fc": (32, 8),
        },
    ),
    "falcon": (
        FALCON,
        FALCON_CONFIG,
        FALCON_SHAPES,
        {"transformer.h.0.self_attention.query_key_value": (32, 16), "transformer.h.0.mlp.dense_4h_to_h": (16, 64)},
    ),
    "mixtral": (
        MIXTRAL,
        {**CONFIG, "num_local_experts": 3},
        {
            "model.embed_tokens": (10, 8),
            "model.layers.0.block_sparse_moe.gate": (3, 8),
            **{f"{EXPERT}.{e}.{w}": (12, 8) for e in range(3) for w in ("w1", "w3")},
        },
        {f"{EXPERT}.{e}.w1": (12, 8) for e in range(3)} | {"model.layers.0.block_sparse_moe.gate": (3, 8)},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"alpha_pattern": {"q_proj|c_fc|dense_4h_to_h": 5}}])
def test_the_file_says_what_merging_does(case, settings):
    """W + alpha / rank * B·A under every GGUF name, with the file's alpha and the matrices' rank."""
    architecture, raw, shapes, modules = CASES[case]
    config = normalized(raw, architecture.defaults)
    stored: dict[str, Tensor] = {}
    for module, (outputs, inputs) in modules.items():
        stored |= pair(module, outputs, inputs)
    found, base = adapter(stored, **settings), tensors(shapes)
    plain = map_tensors(architecture, config, base).tensors
    whole = map_tensors(architecture, config, base, merging([(found, 1.0)])).tensors
    file = adapter_tensors(architecture, config, found).tensors
    adapted = {name.removesuffix(".lora_a") for name in file if name.endswith(".lora_a")}
    assert len(file) == 2 * len(adapted)
    changed = {name for name in plain if not np.array_equal(plain[name].float32(), whole[name].float32())}
    assert adapted == changed
    for name in adapted:
        a, b = file[f"{name}.lora_a"].float32(), file[f"{name}.lora_b"].float32()
        difference = whole[name].float32() - plain[name].float32()
        np.testing.assert_allclose(found.alpha / a.shape[-2] * (b @ a), difference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["nf4-nested", "gptq-4-act-order", "fp8-block", "modelopt-nvfp4-power"])
def test_base_models_that_are_quantized_already(method):
    """QLoRA: the pair is added to what the quantized weight means."""
    settings, write = QUANTIZED[method]
    config = {**CONFIG, "hidden_size": 256, "head_dim": 128, "num_hidden_layers": 1, "quantization_config": settings}
    module = "model.layers.0.self_attn.v_proj"
    parts, meant = write(values(module, (128, 256)))
    base = stored_parts({f"{module}.{key}": part for key, part in parts.items()})
    base |= tensors({"model.embed_tokens": (10, 256)})
    stored = pair(module, 128, 256)
    full = normalized(config, LLAMA.defaults)
    found = map_tensors(LLAMA, full, base, merging([(adapter(stored), 1.0)])).tensors["blk.0.attn_v.weight"]
    np.testing.assert_allclose(found.float32(), meant + 3 * product(stored), rtol=1e-5, atol=1e-5)


def test_norms_go_along_and_other_whole_weights_do_not():
    config = normalized(CONFIG, LLAMA.defaults)
    norm = from_array("norm", values("norm", (8,)))
    name = "base_model.model.model.layers.0.input_layernorm.weight"
    assert list(adapter_tensors(LLAMA, config, adapter(pair(Q, 8, 8) | {name: norm})).tensors) == [
        "blk.0.attn_norm.weight",
        "blk.0.attn_q.weight.lora_a",
        "blk.0.attn_q.weight.lora_b",
    ]
    head = {"base_model.model.lm_head.weight": from_array("head", values("head", (10, 8)))}
    with pytest.raises(ModelError, match="modules_to_save"):
        adapter_tensors(LLAMA, config, adapter(pair(Q, 8, 8) | head))


def test_every_expert_needs_a_pair():
    architecture, raw, _, modules = CASES["mixtral"]
    config = normalized(raw, architecture.defaults)
    stored = {name: t for m, (o, i) in modules.items() if ".1." not in m for name, t in pair(m, o, i).items()}
    with pytest.raises(ModelError, match="expert 1 lacks one"):
        adapter_tensors(architecture, config, adapter(stored))


def test_weights_that_are_cut_up_are_refused():
    raw = {**CONFIG, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "qk_rope_head_dim": 2}
    stored = pair("model.layers.0.self_attn.kv_b_proj", 16, 4)
    with pytest.raises(ModelError, match="cannot follow"):
        adapter_tensors(DEEPSEEK_V2, normalized(raw, DEEPSEEK_V2.defaults), adapter(stored))


def test_encoders_are_left_out_by_name():
    stored = pair(Q, 8, 8) | pair("model.vision_tower.layers.0.q_proj", 8, 8)
    found = adapter_tensors(LLAMA, normalized(CONFIG, LLAMA.defaults), adapter(stored))
    assert found.left_out == ["model.vision_tower.layers.0.q_proj"]
    assert len(found.tensors) == 2
