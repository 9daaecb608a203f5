"""DeepSeek V2 and V3: latent attention, leading dense layers, routed experts in groups, shared experts. The matrix that
widens the latent is stored in two parts, each with heads first: keys transposed, so that it can be applied to the
query, and values. V3's router has a correction bias. Its MTP layer has a file of its own: llama.cpp's converter leaves
it out of the model's and writes no other, though its graph of `deepseek2` runs such layers (of GLM 4.7 Flash).

Youtu-LLM: DeepSeek V3's attention with dense nets. dots.llm1: Qwen3's attention with DeepSeek V3's routing. Every
layer's window, if the config has one, follows `layer_types`; the published model has none. Reference: transformers
`models/deepseek_v2/`, `models/deepseek_v3/`, `models/dots1/`, `models/youtu/`.
"""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from archs.config import changed, rope_scaling, unless_tied, windowed_layers
from archs.experts import FUSED_EXPERTS, GATING, ROUTING, SEPARATE_EXPERTS, SHARED, always
from archs.families.llama import HALVES, LLAMA
from archs.hparams.file_keys import Derived, Keys, of_original
from archs.hparams.model_hparams import HParams
from archs.layer_types import MLA
from archs.rope import FACTORS, attention_factor, yarn_temperature
from archs.schema import TOKENS
from archs.spec import Architecture, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import MTP_KEYS, MTP_ONLY, MTP_TENSORS, head_norms
from archs.transforms import chain, head_rows, transpose
from quants import Tensor
from quants.errors import ModelError

LATENT_EPS = 1e-6  # of the norms of latents, whatever `rms_norm_eps` is (llama.cpp drops it)


def log_multiplier(config: Config) -> float | None:
    """Return how YaRN's attention factor grows with the logarithm of the scaling factor."""
    scale = rope_scaling(config, "mscale_all_dim")
    return 0.1 * scale if scale and rope_scaling(config, "rope_type") == "yarn" else None


def attn_factor(config: Config) -> float | None:
    """Return the factor of cos and sin, if YaRN's two scales don't cancel out (llama.cpp drops it)."""
    if log_multiplier(config) is None:
        return attention_factor(config)
    if rope_scaling(config, "attention_factor"):
        return None
    scale = rope_scaling(config, "mscale")
    beneath = yarn_temperature(config, rope_scaling(config, "mscale_all_dim")) if scale else 1.0
    factor = yarn_temperature(config, scale or 1.0) / beneath
    return factor if factor != 1 else None


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Apply `expert_weights_norm` only to sigmoids: transformers' DeepSeek V2 does not read `norm_topk_prob`."""
    return replace(usual, normalize_experts=usual.normalize_experts and usual.scoring != "softmax")


def v3_config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the widths that the file adds up, and how experts are chosen."""
    return {
        "qk_nope_head_dim": keys["attention.key_length_mla"] - keys["rope.dimension_count"],
        "num_key_value_heads": keys["attention.head_count"],
        "topk_method": "noaux_tc",
        "topk_group": keys.stored("expert_group_used_count"),
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
    }


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    if keys.get("expert_gating_func") == GATING["sigmoid"]:
        raise ModelError("DeepSeek V2's router has no sigmoid")
    greedy = keys.stored("expert_group_used_count") == keys.stored("expert_group_count")
    return {**v3_config_from_gguf(keys, tensors), "topk_method": "greedy" if greedy else "group_limited_greedy"}


def rotary_factors(config: Config) -> Iterable[Tensor]:
    """Return divisors of the rotary frequencies; the rotating part of each head is separate."""
    rotating = changed(config, head_dim=config.get("qk_rope_head_dim") or config.get("head_dim"))
    return itertools.chain.from_iterable(make(rotating) for make in FACTORS)


def of_glm_flash(keys: Keys) -> int | None:
    """Return the scoring of files without that key: sigmoid in GLM 4.7 Flash, softmax in others."""
    if not keys.get("expert_count"):
        return None
    flash = keys.layer_count in (47, 48) and len(keys.metadata.get(TOKENS, ())) == 154_880
    return GATING["sigmoid" if flash else "softmax"]


# Config keys of experts.
ROUTED = (
    "first_k_dense_replace",
    "n_routed_experts",
    "n_shared_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "scoring_func",
    "topk_method",
)

DEEPSEEK_V2 = LLAMA.derive(
    name="deepseek2",
    hf_classes=("DeepseekV2ForCausalLM",),
    vocab=("bpe",),
    metadata={
        **ROUTING,
        "attention.head_count_kv": lambda config: 1,  # all heads read the same latent
        "attention.key_length": lambda config: config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "attention.value_length": "kv_lora_rank",
        "attention.key_length_mla": lambda config: config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length_mla": "v_head_dim",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.latent_norm_epsilon": lambda config: LATENT_EPS if config["rms_norm_eps"] != LATENT_EPS else None,
        "expert_gating_func": always("softmax"),
        "expert_group_used_count": lambda config: (  # plain greedy selection considers all groups
            config.get("n_group" if config.get("topk_method") == "greedy" else "topk_group")
        ),
        "expert_weights_norm": lambda config: config.get("norm_topk_prob") or None,
        "rope.dimension_count": "qk_rope_head_dim",
        "rope.scaling.attn_factor": attn_factor,
        "rope.scaling.yarn_log_multiplier": log_multiplier,
    },
    absent={"expert_gating_func": Derived("", of_glm_flash, "2 in GLM 4.7 Flash, else 1")},
    defaults={
        "model_type": "deepseek_v2",
        "head_dim": None,
        "first_k_dense_replace": 0,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "vocab_size": 102_400,
    },
    config_from_gguf=config_from_gguf,
    generated=(rotary_factors,),
    flags_from_tensors={"attention_bias": "blk.*.attn_kv_a_mqa.bias", "mlp_bias": "blk.*.ffn_up*.bias"},
    refused={"rope_interleave": False},
    tensors={
        **FUSED_EXPERTS,
        "lm_head": TensorMap(unless_tied("output")),
        ".self_attn.q_proj": "attn_q",
        ".self_attn.k_proj": None,
        ".self_attn.v_proj": None,
        ".self_attn.q_a_proj": "attn_q_a",
        ".self_attn.q_a_layernorm": "attn_q_a_norm",
        ".self_attn.q_b_proj": "attn_q_b",
        ".self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        ".self_attn.kv_a_layernorm": "attn_kv_a_norm",
        ".self_attn.kv_b_proj": (
            TensorMap("attn_k_b", chain(head_rows("num_attention_heads", "", "qk_nope_head_dim"), transpose)),
            TensorMap("attn_v_b", head_rows("num_attention_heads", "qk_nope_head_dim", "qk_nope_head_dim+v_head_dim")),
        ),
        ".mlp.gate": "ffn_gate_inp",
        ".mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        **SEPARATE_EXPERTS,
        **SHARED,
    },
    layers_vary=True,
    block={"normalize_experts": False, "hparams_hook": hparams_hook, "mixer": MLA},
)


DEEPSEEK_V3 = DEEPSEEK_V2.derive(
    hf_classes=("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"),
    variant=lambda config: DEEPSEEK_V3_MTP if config.get(MTP_ONLY) else None,
    wrappers=("KimiVLForConditionalGeneration",),
    metadata={"expert_gating_func": always("sigmoid"), "expert_group_used_count": "topk_group"},
    config_from_gguf=v3_config_from_gguf,
    defaults={
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "max_position_embeddings": 4096,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "vocab_size": 129_280,
    },
)

DEEPSEEK_V3_MTP: Architecture = DEEPSEEK_V3.derive(
    hf_classes=(), variant=None, metadata=MTP_KEYS, tensors=MTP_TENSORS, defaults={"num_nextn_predict_layers": 0}
)

YOUTU = DEEPSEEK_V3.derive(
    hf_classes=("YoutuForCausalLM", "YoutuVLForConditionalGeneration"),
    variant=None,
    metadata={
        **dict.fromkeys(ROUTING),
        "expert_count": None,
        "expert_used_count": None,
        # llama.cpp needs these in all files of this name
        "expert_feed_forward_length": "intermediate_size",
        "expert_shared_count": lambda config: 0,
        "leading_dense_block_count": "num_hidden_layers",
    },
    defaults={
        **dict.fromkeys(ROUTED),
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "head_dim": lambda config: config["qk_rope_head_dim"],
        "vocab_size": 128_256,
    },
    config_from_gguf=lambda keys, tensors: {
        "qk_nope_head_dim": keys["attention.key_length_mla"] - keys["rope.dimension_count"],
        "num_key_value_heads": keys["attention.head_count"],
        "pad_token_id": None,  # transformers' class zeroes its row of the embedding
    },
    layers_vary=False,
)


def window_pattern(config: Config) -> list[bool] | None:
    """Return which layers are windowed, if any (llama.cpp drops this)."""
    pattern = windowed_layers(config, lambda layer: layer >= config["max_window_layers"])
    return pattern if any(pattern) and config.get("sliding_window") else None


DOTS1 = HALVES.derive(
    name="dots1",
    hf_classes=("Dots1ForCausalLM",),
    vocab=("bpe", "sentencepiece"),
    metadata={
        **ROUTING,
        "expert_gating_func": always("sigmoid"),
        "attention.sliding_window": lambda config: config.get("sliding_window") if window_pattern(config) else None,
        "attention.sliding_window_pattern": window_pattern,
    },
    absent={"expert_gating_func": of_original(GATING["sigmoid"])},
    defaults={
        "hidden_size": 4608,
        "num_key_value_heads": 32,
        "intermediate_size": 10_944,
        "num_hidden_layers": 62,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "max_position_embeddings": 2048,
        "max_window_layers": 62,
        "vocab_size": 152_064,
    },
    tensors={**{name: target for name, target in DEEPSEEK_V3.tensors.items() if ".mlp." in name}, **head_norms()},
    layers_vary=True,
)
