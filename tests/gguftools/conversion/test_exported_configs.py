"""Exported config.json files and tensor names are those that transformers reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ...archs.checkpoints import FAMILIES
from .exports import exported, with_biases, with_one_net, without

YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}

# entry, option, its value, in whose names there are biases
BIASES = [
    ("deepseek-v3", "attention_bias", True, r"q_a_proj|kv_a_proj_with_mqa|o_proj"),
    ("deepseek-v2-lite", "attention_bias", True, r"kv_a_proj_with_mqa|o_proj"),
    ("qwen3-next", "attention_bias", True, r"self_attn\.[qkvo]_proj"),
    ("mamba", "use_bias", True, r"in_proj|out_proj"),
    ("falcon-mamba", "use_bias", True, r"in_proj|out_proj"),
    ("modernbert", "norm_bias", True, r"norm"),
    ("modernbert", "mlp_bias", True, r"mlp\.W[io]"),
    ("nemotron-h", "use_bias", True, r"in_proj|out_proj"),
    ("nemotron-h", "mlp_bias", True, r"up_proj|down_proj"),
    ("falcon-h1", "projectors_bias", True, r"mamba\.out_proj"),
]


def test_norms_of_q_and_k_are_said(tmp_path):
    config, shapes = exported("glm4-moe", tmp_path)
    assert "model.layers.0.self_attn.q_norm.weight" in shapes
    assert config["use_qk_norm"] is True


def test_experts_have_the_names_of_the_checkpoint(tmp_path):
    _, shapes = exported("granitemoe-swa", tmp_path)
    start = "model.layers.0.block_sparse_moe."
    found = {name.removeprefix(start): shape for name, shape in shapes.items() if name.startswith(start)}
    assert found == {"router.weight": (8, 64), "experts.gate_up_proj": (8, 48, 64), "experts.down_proj": (8, 64, 24)}


def test_names_are_those_of_the_checkpoint(tmp_path):
    _, shapes = exported("nomic-bert", tmp_path)
    spec = json.loads((FAMILIES / "nomic-bert" / "spec.json").read_text(encoding="utf-8"))
    assert shapes == {name: tuple(shape) for name, _, shape, *_ in spec["tensors"]}


@pytest.mark.parametrize(
    ("entry", "key"), [("mamba2", "expand"), ("jamba", "mamba_expand"), ("granite-hybrid", "mamba_expand")]
)
def test_widening_is_whole(entry, key, tmp_path):
    config, _ = exported(entry, tmp_path)
    assert (config[key], type(config[key])) == (2, int)


def test_scalar_is_whole(tmp_path):
    config, _ = exported("gemma2-scalar", tmp_path)
    assert (config["query_pre_attn_scalar"], type(config["query_pre_attn_scalar"])) == (24, int)


def test_rotary_settings_are_by_kind_of_layer(tmp_path):
    config, _ = exported("mellum", tmp_path)
    assert config["rope_parameters"] == {
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 500_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }


def test_kinds_of_layers_are_said(tmp_path):
    config, _ = exported("exaone4-global", tmp_path)
    assert config["layer_types"] == ["full_attention"] * config["num_hidden_layers"]


def test_width_of_the_embedding_is_said(tmp_path):
    config, shapes = exported("opt-350m", tmp_path)
    width = shapes["model.decoder.embed_tokens.weight"][1]
    assert width < config["hidden_size"]
    assert config["word_embed_proj_dim"] == width


@pytest.mark.parametrize(("entry", "option", "value", "pattern"), BIASES)
def test_biases_are_said(entry, option, value, pattern, tmp_path):
    config, shapes = exported(entry, tmp_path, {option: value}, with_biases(pattern))
    assert any(name.endswith(".bias") for name in shapes)
    assert config[option] is value


def test_last_layer_with_experts_is_said(tmp_path):
    config, _ = exported("ernie4-5-moe", tmp_path, {"moe_layer_end_index": 1}, with_one_net(2, 96))
    assert (config["moe_layer_start_index"], config["moe_layer_end_index"]) == (1, 1)


def test_layers_without_experts_are_said(tmp_path):
    options: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": [1]}
    config, _ = exported("qwen3-moe", tmp_path, options, with_one_net(1, 160))
    assert (config["decoder_sparse_step"], config["mlp_only_layers"]) == (1, [1])


def test_missing_norm_at_the_end_is_said(tmp_path):
    change = without(r"decoder\.final_layer_norm")
    config, shapes = exported("opt-125m", tmp_path, {"_remove_final_layer_norm": True}, change)
    assert "model.decoder.final_layer_norm.weight" not in shapes
    assert config["_remove_final_layer_norm"] is True


def test_activation_has_the_name_that_is_read(tmp_path):
    config, _ = exported("gpt2", tmp_path, {"activation_function": "relu2"})
    assert config["activation_function"] == "relu2"


def test_stretching_is_in_the_spelling_that_is_read(tmp_path):
    config, _ = exported("cohere2-moe", tmp_path, {"rope_parameters": YARN, "rope_scaling": None})
    assert config["rope_parameters"] == YARN


@pytest.mark.parametrize(
    ("entry", "ends"),
    [("llama3-gqa-rope-tied", [596, 599]), ("glm4-moe", [590, 597, 599]), ("glm4-moe-lite", [283, 290, 292])],
)
def test_all_tokens_that_end_a_text_are_said(entry, ends, tmp_path):
    config, _ = exported(entry, tmp_path)
    assert config["eos_token_id"] == ends
