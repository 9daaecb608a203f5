"""Variants of families that the zoo has no checkpoint of: what their configs become."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from archs.config import normalized
from archs.plans.text import architecture_metadata, map_tensors, targets
from archs.registry import by_hf_class, of_config
from archs.spec import TensorMap
from quants import from_array
from quants.errors import ModelError


def keys(hf_class: str, **config: Any) -> dict[str, Any]:
    """The family's metadata without its name in front, as plain values."""
    architecture = by_hf_class([hf_class])
    made = architecture_metadata(architecture, normalized(config, architecture.defaults))
    return {key.removeprefix(f"{architecture.name}."): getattr(value, "data", value) for key, value in made.items()}


@pytest.mark.parametrize(
    ("hf_class", "said", "written"),
    [
        ("Qwen2MoeForCausalLM", None, None),
        ("Qwen2MoeForCausalLM", True, True),
        ("Qwen2MoeForCausalLM", False, None),
        ("Qwen3MoeForCausalLM", None, False),
        ("Qwen3MoeForCausalLM", True, None),
        ("OlmoeForCausalLM", True, True),
    ],
)
def test_rescaling_of_experts_is_written_where_the_name_does_not_imply_it(hf_class, said, written) -> None:
    config = {} if said is None else {"norm_topk_prob": said}
    assert keys(hf_class, **config).get("expert_weights_norm") is written


def test_deepseek_yarn_with_two_scales() -> None:
    scaling = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1}
    found = keys("DeepseekV3ForCausalLM", rope_scaling=scaling)
    assert found["rope.scaling.yarn_log_multiplier"] == pytest.approx(0.0707)
    steep = 0.1 * math.log(40)
    assert found["rope.scaling.attn_factor"] == pytest.approx((steep + 1) / (0.707 * steep + 1))
    same = keys("DeepseekV3ForCausalLM", rope_scaling={**scaling, "mscale": 0.707})
    assert "rope.scaling.attn_factor" not in same


def test_deepseek_greedy_routing_looks_at_all_groups() -> None:
    greedy = keys("DeepseekV2ForCausalLM", n_group=4, topk_group=2, topk_method="greedy")
    limited = keys("DeepseekV2ForCausalLM", n_group=4, topk_group=2, topk_method="group_limited_greedy")
    assert (greedy["expert_group_used_count"], limited["expert_group_used_count"]) == (4, 2)


@pytest.mark.parametrize("infinity", [math.inf, {"__float__": "Infinity"}])
def test_time_steps_without_bounds_write_none(infinity: Any) -> None:
    found = keys("Mamba2ForCausalLM", time_step_limit=[0.0, infinity])
    assert not {"ssm.time_step_min", "ssm.time_step_max"} & set(found)
    found = keys("Mamba2ForCausalLM", time_step_limit=[0.01, infinity])
    assert (found["ssm.time_step_min"], "ssm.time_step_max" in found) == (0.01, False)


@pytest.mark.parametrize(
    "pattern",
    [
        {"hybrid_override_pattern": "M-*M"},
        {"layers_block_type": ["mamba", "mlp", "attention", "mamba"]},
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ],
)
def test_nemotron_patterns_in_every_spelling(pattern: dict[str, Any]) -> None:
    found = keys("NemotronHForCausalLM", num_key_value_heads=2, intermediate_size=9, **pattern)
    assert found["block_count"] == 4
    assert found["attention.head_count_kv"] == [0, 0, 2, 0]
    assert found["feed_forward_length"] == [0, 9, 0, 0]


def test_lfm2_widths_and_layers() -> None:
    adjusted = keys(
        "Lfm2ForCausalLM",
        num_hidden_layers=3,
        full_attn_idxs=[1],
        intermediate_size=100,
        block_multiple_of=16,
        block_ffn_dim_multiplier=1.5,
        num_key_value_heads=2,
    )
    assert adjusted["feed_forward_length"] == 112  # 100 → 66 → 99 → a multiple of 16
    assert adjusted["attention.head_count_kv"] == [0, 2, 0]


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 0.125),
        ({"tie_word_embeddings": False}, None),
        ({"tie_word_embeddings": True}, 0.125),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, None),
        ({"model_type": "mt5"}, None),
    ],
)
def test_t5_scales_the_first_version_only(config: dict[str, Any], scale: float | None) -> None:
    assert keys("T5ForConditionalGeneration", d_model=64, **config).get("logit_scale") == scale


def test_t5_says_unusual_activations_and_distances() -> None:
    assert "hidden_activation" not in keys("T5ForConditionalGeneration", feed_forward_proj="gated-gelu")
    found = keys("T5ForConditionalGeneration", feed_forward_proj="gated-silu", relative_attention_max_distance=20)
    assert (found["hidden_activation"], found["attention.relative_max_distance"]) == ("silu", 20)


def test_granite_hybrids_without_experts_have_a_dense_net() -> None:
    target = by_hf_class(["GraniteMoeHybridForCausalLM"]).tensors["layers.{i}.shared_mlp.output_linear"]
    assert isinstance(target, TensorMap)
    assert callable(target.name)
    assert target.name({"num_local_experts": 4}) == "blk.{i}.ffn_down_shexp"
    assert target.name({"num_local_experts": 0}) == "blk.{i}.ffn_down"
    assert keys("GraniteMoeHybridForCausalLM", position_embedding_type="rope")["rope.scaling.finetuned"] is True


def test_gpt_oss_defaults() -> None:
    found = keys("GptOssForCausalLM", num_hidden_layers=4)
    assert found["rope.scaling.factor"] == 32
    assert found["rope.scaling.yarn_truncate"] is False
    assert "attention.sliding_window_pattern" not in found
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
    changed = keys("GptOssForCausalLM", num_hidden_layers=4, layer_types=kinds, swiglu_limit=5.0)
    assert changed["attention.sliding_window_pattern"] == [False, True, True, True]
    assert changed["swiglu_limit"] == 5


@pytest.mark.parametrize(
    ("hf_class", "key", "value"),
    [
        ("DeepseekV3ForCausalLM", "rope_interleave", False),
        ("BloomForCausalLM", "apply_residual_connection_post_layernorm", True),
    ],
)
def test_what_files_cannot_express_is_refused(hf_class: str, key: str, value: bool) -> None:
    with pytest.raises(ModelError, match=rf"config.json has {key} = {value}, which \w+ files cannot express"):
        keys(hf_class, **{key: value})
    keys(hf_class, **{key: not value, "hidden_size": 64})


def test_a_sparse_mixer_chooses_two_experts() -> None:
    with pytest.raises(ModelError, match="num_experts_per_tok = 1, which phimoe files cannot express"):
        keys("PhiMoEForCausalLM", num_experts_per_tok=1)


def test_gpt2_scales_attention_by_layer() -> None:
    config = {"n_embd": 8, "n_head": 2, "n_layer": 3, "scale_attn_by_inverse_layer_idx": True}
    assert keys("GPT2LMHeadModel", **config)["attention.scale"] == [0.5, 0.25, 0.5 / 3]
    assert keys("GPT2LMHeadModel", **config, scale_attn_weights=False)["attention.scale"] == [1, 0.5, 1 / 3]
    assert "attention.scale" not in keys("GPT2LMHeadModel", **{**config, "scale_attn_by_inverse_layer_idx": False})


def test_yarn_with_a_temperature_of_its_own() -> None:
    scaling = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}
    found = keys("LlamaForCausalLM", rope_scaling={**scaling, "attention_factor": 1.3, "extrapolation_factor": 1.0})
    assert (found["rope.scaling.yarn_attn_factor"], found["rope.scaling.yarn_ext_factor"]) == (1.3, 1.0)
    assert "rope.scaling.attn_factor" not in found
    two_scales = keys("LlamaForCausalLM", rope_scaling={**scaling, "mscale": 1.0, "mscale_all_dim": 0.5})
    assert two_scales["rope.scaling.attn_factor"] == pytest.approx(1 / (0.05 * math.log(4) + 1))


def test_rope_scaling_looks_for_the_trained_context_beside_it_first() -> None:
    found = keys("LlamaForCausalLM", original_max_position_embeddings=64, rope_scaling={"type": "yarn", "factor": 4})
    assert found["rope.scaling.original_context_length"] == 64


def test_longrope_in_any_family() -> None:
    scaling = {"type": "su", "short_factor": [1.0], "long_factor": [2.0], "factor": 4.0}
    found = keys("GraniteForCausalLM", rope_scaling={**scaling, "original_max_position_embeddings": 256})
    assert found["rope.scaling.type"] == "longrope"
    assert found["rope.scaling.attn_factor"] == pytest.approx(math.sqrt(1 + math.log(4) / math.log(256)))


def test_an_unknown_kind_of_rope_scaling_is_refused() -> None:
    with pytest.raises(ModelError, match=r"rope scaling of type 'xdrope' in config\.json is not one of linear, yarn"):
        keys("LlamaForCausalLM", rope_scaling={"type": "xdrope", "factor": 4})


@pytest.mark.parametrize(
    ("hf_class", "config", "pattern"),
    [
        ("Qwen2ForCausalLM", {"max_window_layers": 2}, [False, False, True]),
        ("Qwen2MoeForCausalLM", {"max_window_layers": 2}, [True, False, False]),
        ("Qwen3MoeForCausalLM", {"max_window_layers": 2}, [True, True, True]),
        ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 2}, [False, True, False]),
        (
            "Qwen2ForCausalLM",
            {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
            [True, False, False],
        ),
    ],
)
def test_windows_that_are_switched_on(hf_class: str, config: dict[str, Any], pattern: list[bool]) -> None:
    config = {"num_hidden_layers": 3, "sliding_window": 8, **config}
    found = keys(hf_class, **config, use_sliding_window=True)
    assert found["attention.sliding_window"] == 8
    assert found["attention.sliding_window_pattern"] == pattern
    assert not {"attention.sliding_window", "attention.sliding_window_pattern"} & set(keys(hf_class, **config))


@pytest.mark.parametrize("hf_class", ["Qwen2ForCausalLM", "SmolLM3ForCausalLM", "SeedOssForCausalLM"])
def test_null_key_value_heads_mean_as_many_as_queries(hf_class: str) -> None:
    assert keys(hf_class, num_attention_heads=6, num_key_value_heads=None)["attention.head_count_kv"] == 6


def test_rotary_settings_win_over_keys_beside_them() -> None:
    scaling = {"type": "linear", "factor": 2, "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    config = {"rope_theta": 1.0, "partial_rotary_factor": 1.0, "hidden_size": 64, "num_attention_heads": 4}
    found = keys("GPTNeoXForCausalLM", **config, rope_scaling=scaling)
    assert (found["rope.freq_base"], found["rope.dimension_count"]) == (5e5, 8)


def test_windowed_layers_with_a_rope_scaling_of_their_own_are_refused() -> None:
    plain, linear = {"rope_type": "default", "rope_theta": 1e4}, {"rope_type": "linear", "factor": 2, "rope_theta": 1e4}
    keys("Gemma3ForCausalLM", rope_parameters={"full_attention": linear, "sliding_attention": plain})
    with pytest.raises(ModelError, match=r"scales the rope of windowed layers apart \(linear\)"):
        keys("Gemma3ForCausalLM", rope_parameters={"full_attention": linear, "sliding_attention": linear})


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
def test_lists_of_factors_mean_longrope(name: str) -> None:
    scaling = {"type": name, "short_factor": [1.0], "long_factor": [2.0], "factor": 4.0}
    found = keys("Phi3ForCausalLM", rope_scaling=scaling, original_max_position_embeddings=256)
    assert "rope.scaling.type" not in found
    assert found["rope.scaling.attn_factor"] == pytest.approx(math.sqrt(1 + math.log(4) / math.log(256)))


@pytest.mark.parametrize(
    ("hf_class", "config", "written"),
    [
        ("GemmaForCausalLM", {"hidden_act": "gelu", "hidden_activation": "relu"}, None),
        ("GemmaForCausalLM", {"hidden_act": "relu"}, "relu"),
        ("Gemma2ForCausalLM", {"hidden_act": "gelu", "hidden_activation": "relu"}, "relu"),
        ("Gemma3ForCausalLM", {"hidden_act": "gelu"}, None),
        ("ApertusForCausalLM", {"hidden_act": "gelu"}, "gelu"),
        ("LlamaForCausalLM", {"hidden_act": "gelu_python"}, "gelu_python"),
    ],
)
def test_activations(hf_class: str, config: dict[str, Any], written: str | None) -> None:
    assert keys(hf_class, **config).get("hidden_activation") == written


def test_phimoe_longrope() -> None:
    scaling = {
        "type": "longrope",
        "short_mscale": 1.25,
        "long_mscale": 1.25,
        "short_factor": [1.0],
        "long_factor": [2.0],
        "original_max_position_embeddings": 32,
    }
    found = keys("PhiMoEForCausalLM", rope_scaling=scaling)
    assert (found["rope.scaling.attn_factor"], found["rope.scaling.original_context_length"]) == (1.25, 32)
    assert found["attention.sliding_window"] == 0
    with pytest.raises(ModelError, match=r"long_mscale = 1\.5 and short_mscale = 1\.25"):
        keys("PhiMoEForCausalLM", rope_scaling={**scaling, "long_mscale": 1.5})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"layer_types": ["mamba", "attention"]}, "granitehybrid"),
        ({"layer_types": ["attention"] * 2}, "granitemoe"),
        ({"layer_types": ["attention"] * 2, "num_experts_per_tok": 0}, "granite"),
    ],
)
def test_granite_hybrids_of_attention_alone_are_no_hybrids(changes: dict[str, Any], name: str) -> None:
    config = {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "position_embedding_type": "rope",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 99,
        **changes,
    }
    architecture = of_config(config)
    assert architecture.name == name
    found = architecture_metadata(architecture, normalized(config, architecture.defaults))
    assert (found[f"{name}.context_length"], found[f"{name}.rope.scaling.finetuned"]) == (99, True)


def test_granite_without_a_shared_expert_writes_no_width_of_it() -> None:
    assert "expert_shared_feed_forward_length" not in keys("GraniteMoeSharedForCausalLM", shared_intermediate_size=0)


def test_dots_windows_begin_where_the_config_says() -> None:
    found = keys("Dots1ForCausalLM", num_hidden_layers=3, sliding_window=8, max_window_layers=1)
    assert found["attention.sliding_window_pattern"] == [False, True, True]
    assert "attention.sliding_window" not in keys("Dots1ForCausalLM", num_hidden_layers=3, sliding_window=8)


@pytest.mark.parametrize(
    ("config", "written"),
    [
        ({}, 3),
        ({"global_attn_every_n_layers": 2}, 2),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, 2),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2}, [True, False, True, False]),
    ],
)
def test_modernbert_patterns(config: dict[str, Any], written: int | list[bool]) -> None:
    assert keys("ModernBertModel", num_hidden_layers=4, **config)["attention.sliding_window_pattern"] == written


def test_falcon_h1_says_what_a_tied_head_is_multiplied_by() -> None:
    scales = {"embedding_multiplier": 4.0, "lm_head_multiplier": 0.5}
    assert keys("FalconH1ForCausalLM", **scales, tie_word_embeddings=True)["tied_logit_scale"] == 0.125
    assert "tied_logit_scale" not in keys("FalconH1ForCausalLM", **scales)


def test_nemotron_bounds_time_steps_from_below_alone() -> None:
    found = keys("NemotronHForCausalLM", hybrid_override_pattern="M-", time_step_limit=[0.1, 0.2], mamba_dt_min=0.02)
    assert (found["ssm.time_step_min"], "ssm.time_step_max" in found) == (0.02, False)


def test_layers_for_further_tokens_count_where_the_config_says_so() -> None:
    assert keys("Glm4MoeForCausalLM", num_hidden_layers=3)["block_count"] == 3
    assert keys("Glm4MoeForCausalLM", num_hidden_layers=3, num_nextn_predict_layers=1)["block_count"] == 4


@pytest.mark.parametrize(
    ("said", "kind"),
    [({"rope_scaling": None}, "yarn"), ({"rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}, None)],
)
def test_gpt_oss_is_stretched_unless_it_says_not(said: dict[str, Any], kind: str | None) -> None:
    assert keys("GptOssForCausalLM", num_hidden_layers=2, **said).get("rope.scaling.type") == kind


def test_mt5_has_defaults_of_its_own() -> None:
    architecture = of_config({"architectures": ["MT5ForConditionalGeneration"]})
    found = architecture_metadata(architecture, normalized({}, architecture.defaults))
    assert (found["t5.block_count"], found["t5.attention.head_count"], found["t5.feed_forward_length"]) == (8, 6, 1024)


@pytest.mark.parametrize(
    ("hf_class", "key", "value"),
    [
        ("MambaForCausalLM", "hidden_act", "gelu"),
        ("Mamba2ForCausalLM", "hidden_act", "gelu"),
        ("JambaForCausalLM", "hidden_act", "gelu"),
        ("FalconH1ForCausalLM", "hidden_act", "gelu"),
        ("NemotronHForCausalLM", "mamba_hidden_act", "gelu"),
        ("Ernie4_5_MoeForCausalLM", "moe_norm_min", 0.5),
        ("BertModel", "is_decoder", True),
    ],
)
def test_values_that_files_cannot_express_are_refused(hf_class: str, key: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"config.json has {key} = {value!r}, which [\w.-]+ files cannot express"):
        keys(hf_class, **{key: value})


@pytest.mark.parametrize(
    ("main", "compress", "problem"),
    [
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}, "another part of heads rotate"),
        ({"rope_type": "linear", "factor": 2.0}, {}, "scales the rope of layers without compressed entries"),
        ({}, {"rope_type": "yarn", "factor": 4.0}, "yarn without attention_factor = 1"),
    ],
)
def test_layers_of_deepseek_v4_that_rotate_otherwise_are_refused(main, compress, problem) -> None:
    usual = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    with pytest.raises(ModelError, match=problem):
        keys("DeepseekV4ForCausalLM", rope_parameters={"main": usual | main, "compress": usual | compress})


@pytest.mark.parametrize(
    ("said", "width", "heads"),
    [
        ({}, 512, 2),
        ({"global_head_dim": 24}, 24, 2),
        ({"per_layer_config": {"1": {"head_dim": 24}}}, 24, 2),
        ({"per_layer_config": {"1": {"num_key_value_heads": 1}}}, 16, [2, 1]),
        ({"per_layer_config": {}}, 16, 2),
    ],
)
def test_gemma4s_full_layers_are_as_the_others_where_transformers_says_no_more(said, width, heads) -> None:
    found = keys("Gemma4ForCausalLM", num_hidden_layers=2, head_dim=16, num_key_value_heads=2, hidden_size=64, **said)
    assert (found["attention.key_length"], found["attention.head_count_kv"]) == (width, heads)


def test_a_width_of_experts_may_be_said_of_a_model_without_any() -> None:
    architecture = by_hf_class(["NemotronHForCausalLM"])
    tensors = {"x": from_array("x", np.zeros((300, 64), np.float32))}
    read = normalized({"moe_intermediate_size": 7688}, architecture.defaults, architecture.keys, tensors)
    assert read["moe_intermediate_size"] == 7688  # as transformers saves all of them


@pytest.mark.parametrize("hf_class", ["DeepseekV2ForCausalLM", "KimiLinearForCausalLM", "BailingHybridForCausalLM"])
@pytest.mark.parametrize("scaling", [{"rope_type": "llama3"}, {"type": "longrope", "long_factor": [1, 2, 3, 4]}])
def test_divisors_are_those_of_the_part_that_rotates(hf_class: str, scaling: dict[str, Any]) -> None:
    scaling = {
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "short_factor": [1] * 4,
        "original_max_position_embeddings": 64,
        **scaling,
    }
    config = {"hidden_size": 64, "num_attention_heads": 2, "qk_rope_head_dim": 8, "head_dim": 16, "rope_theta": 100.0}
    architecture = by_hf_class([hf_class])
    config = normalized({**config, "rope_scaling": scaling}, architecture.defaults, architecture.keys)
    made = [tensor for make in architecture.generated for tensor in make(config)]
    assert [tensor.shape for tensor in made] == [(4,)] * len(made) != []


def test_gemma4s_windows_with_a_scaled_rope_are_refused() -> None:
    said = {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    }
    architecture = by_hf_class(["Gemma4ForCausalLM"])
    config = normalized({"rope_parameters": said}, architecture.defaults, architecture.keys)
    with pytest.raises(ModelError, match="scales windowed layers' rope"):
        [*architecture.generated[0](config)]


@pytest.mark.parametrize(("kind", "problem"), [("linear", "indexer_compress_ratio"), ("dynamic", "rope_scaling = ")])
def test_qwen4_exp_is_refused_with_a_rope_that_its_pooled_keys_end(kind: str, problem: str) -> None:
    scaling = {"rope_type": kind, "factor": 2.0}
    with pytest.raises(ModelError, match=problem):  # a config without the rest, else
        keys("Qwen4ExpForCausalLM", output_gate_type="sigmoid", rope_scaling=scaling)


def test_heads_of_qwen4_exp_rotate_as_a_whole_where_nothing_is_said() -> None:
    for hf_class, share in (("Qwen4ExpForCausalLM", 1.0), ("Qwen3NextForCausalLM", 0.25)):
        architecture = by_hf_class([hf_class])
        assert normalized({}, architecture.defaults, architecture.keys)["partial_rotary_factor"] == share


def test_the_wrapper_says_whether_there_is_a_head() -> None:
    part = {"tie_word_embeddings": True, "num_hidden_layers": 2}
    for said, tied in (({}, True), ({"tie_word_embeddings": False}, False)):
        assert normalized({"text_config": part, **said}, {})["tie_word_embeddings"] is tied


def test_the_wrapper_of_gemma3_leaves_logits_as_they_are() -> None:
    part = {"final_logit_softcapping": 2.0, "num_hidden_layers": 2}
    assert keys("Gemma3ForCausalLM", **part)["final_logit_softcapping"] == 2.0
    found = keys("Gemma3ForConditionalGeneration", model_type="gemma3", text_config=part)
    assert (found["block_count"], "final_logit_softcapping" in found) == (2, False)


def test_first_falcon_configs() -> None:
    config = {"n_head": 8, "n_layer": 2, "hidden_size": 64, "alibi": False, "bias": False, "parallel_attn": True}
    assert keys("RWForCausalLM", **config, n_head_kv=2)["attention.head_count_kv"] == 2
    assert keys("RWForCausalLM", **config, multi_query=True)["attention.head_count_kv"] == 1
    assert keys("RWForCausalLM", **config, multi_query=False)["attention.head_count_kv"] == 8


def test_first_stablelm_configs() -> None:
    found = keys("StableLMEpochForCausalLM", norm_eps=1e-6, rope_pct=0.5, hidden_size=64, num_attention_heads=4)
    assert found["attention.layer_norm_epsilon"] == 1e-6
    assert "attention.layer_norm_rms_epsilon" not in found
    assert found["rope.dimension_count"] == 8


@pytest.mark.parametrize("hf_class", ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "OlmoeForCausalLM"])
def test_experts_stored_together_are_those_stored_apart(hf_class: str) -> None:
    architecture = by_hf_class([hf_class])
    gate, up = architecture.tensors["layers.{i}.mlp.experts.gate_up_proj"]  # type: ignore[misc]
    assert (gate.name, up.name) == ("blk.{i}.ffn_gate_exps.weight", "blk.{i}.ffn_up_exps.weight")
    together = from_array("gate_up", np.arange(24, dtype=np.float32).reshape(2, 6, 2))
    np.testing.assert_array_equal(up.transform(together, {}).float32(), together.float32()[:, 3:])


def test_nemotron_with_experts_has_a_name_of_its_own() -> None:
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "hybrid_override_pattern": "ME*-",
        "moe_intermediate_size": 9,
        "moe_latent_size": 5,
        "num_key_value_heads": 2,
    }
    architecture = of_config(config)
    assert architecture.name == "nemotron_h_moe"
    made = architecture_metadata(architecture, normalized(config, architecture.defaults))
    found = {key.removeprefix("nemotron_h_moe."): getattr(value, "data", value) for key, value in made.items()}
    assert found["feed_forward_length"] == [0, 9, 0, 0]
    assert found["attention.head_count_kv"] == [0, 0, 2, 0]
    assert (found["expert_count"], found["expert_group_count"], found["moe_latent_size"]) == (8, 1, 5)
    assert "expert_gating_func" not in found
    assert of_config({**config, "hybrid_override_pattern": "M*-"}).name == "nemotron_h"


def test_gemma_that_sees_both_ways_is_an_encoder() -> None:
    classes = {"architectures": ["Gemma3TextModel"]}
    assert of_config({**classes, "use_bidirectional_attention": True}).name == "gemma-embedding"
    assert of_config({**classes, "use_bidirectional_attention": False}).name == "gemma3"
    with pytest.raises(ModelError, match="use_bidirectional_attention = True, which gemma3 files cannot express"):
        keys("Gemma3ForCausalLM", use_bidirectional_attention=True)


@pytest.mark.parametrize(
    ("hf_class", "net"),
    [
        ("DeepseekV3ForCausalLM", "mlp"),
        ("Dots1ForCausalLM", "mlp"),
        ("Glm4MoeForCausalLM", "mlp"),
        ("Ernie4_5_MoeForCausalLM", "mlp"),
        ("MiniMaxM2ForCausalLM", "mlp"),
        ("JambaForCausalLM", "feed_forward"),
        ("GraniteMoeHybridForCausalLM", "block_sparse_moe"),
    ],
)
def test_experts_stored_together(hf_class: str, net: str) -> None:
    found = targets(by_hf_class([hf_class]), {}, f"model.layers.1.{net}.experts.gate_up_proj") or []
    assert [name for _, name in found] == ["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"]


@pytest.mark.parametrize("hf_class", ["DeepseekV3ForCausalLM", "HunYuanDenseV1ForCausalLM", "MambaForCausalLM"])
def test_second_copies_of_tied_heads_are_left_out_where_the_reference_does(hf_class: str) -> None:
    embedding = from_array("model.embed_tokens.weight", np.zeros((4, 8), np.float32))
    head = from_array("lm_head.weight", np.zeros((4, 8), np.float32))
    if hf_class == "MambaForCausalLM":
        embedding = embedding.renamed("backbone.embeddings.weight")
    for tied in (True, False):
        config = {"num_hidden_layers": 0, "tie_word_embeddings": tied}
        mapped = map_tensors(by_hf_class([hf_class]), config, {each.name: each for each in (embedding, head)})
        assert ("output.weight" in mapped.tensors, mapped.ignored) == (not tied, ["lm_head.weight"] * tied)


def test_base_classes_without_a_head() -> None:
    assert of_config({"architectures": ["DeepseekV3Model"]}) is by_hf_class(["DeepseekV3ForCausalLM"])


def test_labels_of_classifiers() -> None:
    assert keys("BertModel", id2label={"0": "LABEL_0"})["classifier.output_labels"] == ["LABEL_0"]
    assert keys("ModernBertModel", id2label={"10": "b", "2": "a"})["classifier.output_labels"] == ["a", "b"]
    assert "classifier.output_labels" not in keys("BertModel", id2label={"0": "LABEL_0", "1": "LABEL_1"})


def test_nemotron_norms_use_one_epsilon() -> None:
    config = {"hybrid_override_pattern": "M-", "layer_norm_epsilon": 1e-4}
    assert "attention.layer_norm_rms_epsilon" not in keys("NemotronHForCausalLM", **config)
    assert keys("NemotronHForCausalLM", rms_norm_eps=1e-5, **config)["attention.layer_norm_rms_epsilon"] == 1e-4


@pytest.mark.parametrize(
    ("hf_class", "number"),
    [("DeepseekV2ForCausalLM", 1), ("DeepseekV3ForCausalLM", 2), ("Dots1ForCausalLM", 2), ("MiniMaxM2ForCausalLM", 2)],
)
def test_routers_score_in_their_model_types_way(hf_class: str, number: int) -> None:
    for said in ("softmax", "sigmoid"):
        config = {"scoring_func": said, "num_hidden_layers": 1}
        assert keys(hf_class, **config)["expert_gating_func"] == number


def test_lfm2_has_one_activation() -> None:
    assert "hidden_activation" not in keys("Lfm2ForCausalLM", hidden_act="gelu", num_hidden_layers=1)


def test_modernbert_scales_the_rope_of_global_layers() -> None:
    local = {"rope_type": "default", "rope_theta": 9.0}
    scaled = {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 99.0}, "sliding_attention": local}
    found = keys("ModernBertModel", rope_parameters=scaled)
    assert (found["rope.scaling.type"], found["rope.scaling.factor"]) == ("linear", 2.0)
    assert (found["rope.freq_base"], found["rope.freq_base_swa"]) == (99.0, 9.0)


def test_nemotron_predicts_further_tokens_by_one_layer() -> None:
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "hybrid_override_pattern": "ME",
        "moe_intermediate_size": 9,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
    }
    architecture = of_config(config)
    full = normalized(config, architecture.defaults)
    made = {
        key.removeprefix("nemotron_h_moe."): getattr(value, "data", value)
        for key, value in architecture_metadata(architecture, full).items()
    }
    assert (made["block_count"], made["nextn_predict_layers"]) == (3, 1)
    assert (made["attention.head_count_kv"], made["feed_forward_length"]) == ([0, 0, 2], [0, 9, 9])
    assert architecture.prepare is not None
    names = ["mtp.layers.0.norm.weight", "mtp.layers.1.norm.weight", "mtp.layers.1.final_layernorm.weight"]
    _, renamed = architecture.prepare(full, {name: from_array(name, np.zeros(2, np.float32)) for name in names})
    found = [(targets(architecture, full, name) or [])[0][1] for name in renamed]
    assert found == [f"blk.2.{role}.weight" for role in ("attn_norm", "post_attention_norm", "nextn.shared_head_norm")]


@pytest.mark.parametrize(
    ("hf_class", "source", "labels", "name"),
    [
        ("BertForSequenceClassification", "pooler.dense.weight", 2, "cls.weight"),
        ("BertForSequenceClassification", "classifier.weight", 2, "cls.output.weight"),
        ("RobertaForSequenceClassification", "classifier.dense.bias", 2, "cls.bias"),
        ("XLMRobertaForSequenceClassification", "classifier.out_proj.weight", 1, "cls.output.weight"),
        ("DistilBertForSequenceClassification", "pre_classifier.weight", 2, "cls.weight"),
        ("ModernBertForSequenceClassification", "head.norm.weight", 2, "cls.norm.weight"),
    ],
)
def test_heads_of_classifiers(hf_class: str, source: str, labels: int, name: str) -> None:
    config = {"architectures": [hf_class], "id2label": {str(i): f"LABEL_{i}" for i in range(labels)}}
    assert [made for _, made in targets(by_hf_class([hf_class]), config, source) or []] == [name]


def test_heads_for_training_are_no_classifiers() -> None:
    head = from_array("head.dense.weight", np.zeros((4, 4), np.float32))
    embedding = from_array("model.embeddings.tok_embeddings.weight", np.zeros((4, 4), np.float32))
    config = {"architectures": ["ModernBertForMaskedLM"], "num_hidden_layers": 0}
    sources = {each.name: each for each in (head, embedding)}
    mapped = map_tensors(by_hf_class(["ModernBertForMaskedLM"]), config, sources)
    assert mapped.ignored == ["head.dense.weight"]


def test_biases_of_minicpm3_are_those_of_its_latents() -> None:
    assert by_hf_class(["MiniCPM3ForCausalLM"]).flags_from_tensors["attention_bias"] == "blk.*.attn_kv_a_mqa.bias"
