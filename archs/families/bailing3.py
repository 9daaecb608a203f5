"""Ling 3 (Bailing 3): Kimi Linear's delta attention with a matrix each for decay and gates, bounded by a sigmoid, and
in the last layer of each group latent attention with a gate for each head. DeepSeek V3's routing.

Ling 3 VL (text): the same, rotated by sections. Reference: transformers `models/bailing_hybrid/`; llama.cpp's
converter. transformers' class supports only queries without a low rank.
"""

import re
from functools import partial

import numpy as np

from archs.config import other_than
from archs.experts import SEPARATE_EXPERTS, SHARED, dense_layers
from archs.families.bailing import shared_width
from archs.families.deepseek2 import attn_factor, log_multiplier, v3_config_from_gguf
from archs.families.kimi_linear import KIMI_LINEAR
from archs.families.qwen2 import sections
from archs.hparams.file_keys import with_experts
from archs.spec import Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS
from archs.transforms import Invertible, computed, negative_exp
from quants.errors import ModelError


def attends(config: Config) -> list[int]:
    """Return 1 in layers with latent attention, MTP layers included."""
    mtp_layers = config.get("num_nextn_predict_layers") or 0
    return [int(layer_type == "full_attention") for layer_type in config["layer_types"]] + [1] * mtp_layers


def limits(key: str, config: Config) -> list[float] | None:
    """Return bounds of gated units by layer, 0 for none."""
    if not (given := config.get(key)):
        return None
    count = config["num_hidden_layers"] + (config.get("num_nextn_predict_layers") or 0)
    return [float(each or 0) for each in (*given, *[0] * count)][:count]


GATE = re.compile(r"(.*layers\.(\d+)\.attention\.)(g_proj|out_gate)\.weight")
LATENT = re.compile(r"layers\.(\d+)\.attention\.kv_a_proj_with_mqa\.weight")


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return gates by the type of their layer, as both share a name. Tensors tell which layers attend: for layers
    outside whole groups the published code and transformers disagree.
    """
    attending, named = {int(place[1]) for name in tensors if (place := LATENT.search(name))}, {}
    layer_types = ["full_attention" if i in attending else "" for i in range(config["num_hidden_layers"])]
    config = {**config, "layer_types": layer_types}
    for name, tensor in tensors.items():
        if (gate := GATE.fullmatch(name)) and int(gate[2]) in attending:
            name = f"{gate[1]}out_gate.weight"
        named[name] = tensor
    return config, named


def published(config: Config, tensors: Tensors) -> Tensors:
    """Return the gates by their shared name."""
    return {(new := GATE.sub(r"\1g_proj.weight", name)): tensor.renamed(new) for name, tensor in tensors.items()}


# the inverse of the logarithm; Kimi Linear stores the negative
exp = Invertible(
    lambda tensor, config: computed(negative_exp(tensor, config), np.negative),
    lambda tensor, config: negative_exp.invert(computed(tensor, np.negative), config),
)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    count = keys["block_count"] - keys.get("nextn_predict_layers")
    full = [bool(each) for each in keys["attention.head_count_kv"]][:count]
    if True not in full:
        raise ModelError("no layer of the file has full attention; Ling 3's config cannot say that")
    group = full.index(True) + 1
    lists = {"swiglu_clamp_exp": "expert_swiglu_limit_list", "swiglu_clamp_shexp": "share_expert_swiglu_limit_list"}
    optional = {name: keys[key] for key, name in lists.items() if key in keys}
    if (parts := keys.stored("rope.dimension_sections")) is not None:
        optional["mrope_section"] = parts[:3]
    return {
        **optional,
        **v3_config_from_gguf(keys, tensors),
        "layer_group_size": group,
        "no_kda_lora": True,
        "kda_safe_gate": True,
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
        "n_group": keys.get("expert_group_count"),
        "topk_group": keys.get("expert_group_used_count"),
        "num_key_value_heads": keys["attention.head_count"],
        "gated_attention_proj_granularity_type": "head_wise",
        "head_dim": keys["kda.head_dim"],
        "first_k_dense_replace": len(dense_layers({"block_count": count}, tensors)["mlp_only_layers"]),
        "layer_types": ["full_attention" if each else "linear_attention" for each in full],
    }


ATTENTION: dict[str, Target] = {
    name.replace(".self_attn.", ".attention."): target
    for name, target in KIMI_LINEAR.tensors.items()
    if ".self_attn." in name
}

BAILING3 = KIMI_LINEAR.derive(
    name="bailingmoe3",
    hf_classes=("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM", "BailingMoeV3VLForConditionalGeneration"),
    config_from_gguf=config_from_gguf,
    metadata={
        **MTP_KEYS,
        "vocab_size": "vocab_size",
        "rope.dimension_sections": sections,
        "rope.scaling.attn_factor": attn_factor,
        "rope.scaling.yarn_log_multiplier": log_multiplier,
        "context_length": "model_max_length|max_position_embeddings",
        "attention.head_count_kv": attends,
        "attention.value_length": "linear_head_dim|head_dim",
        "ssm.conv_kernel": "linear_conv_kernel_dim|short_conv_kernel_size",
        "kda.head_dim": "linear_head_dim|head_dim",
        "kda.safe_gate": "kda_safe_gate",
        "kda.gate_lower_bound": "kda_lower_bound",
        "expert_shared_feed_forward_length": shared_width,
        "expert_weights_norm": "moe_renormalize|norm_topk_prob",
        "expert_group_count": "num_expert_group|n_group",
        "swiglu_clamp_exp": partial(limits, "expert_swiglu_limit_list"),
        "swiglu_clamp_shexp": partial(limits, "share_expert_swiglu_limit_list"),
    },
    defaults={
        "model_type": "bailing_hybrid",
        "hidden_size": 2560,
        "intermediate_size": 6144,
        "num_hidden_layers": 42,
        "num_attention_heads": 32,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "num_experts": 512,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 768,
        "first_k_dense_replace": 2,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "short_conv_kernel_size": 4,
        "kda_safe_gate": True,
        "kda_lower_bound": -5.0,
        "rope_theta": 6_000_000.0,
        "max_position_embeddings": lambda config: config.get("model_max_length") or 262_144,
        "vocab_size": 157_184,
        "model_max_length": None,
        "num_experts_per_token": None,
        "num_nextn_predict_layers": 0,
    },
    refused={
        "no_kda_lora": False,
        "kda_safe_gate": False,
        "gated_attention_proj_granularity_type": other_than("head_wise"),
    },
    tensors={
        **dict.fromkeys(name for name in KIMI_LINEAR.tensors if ".self_attn." in name or "block_sparse" in name),
        **ATTENTION,
        "embed_tokens": None,
        "word_embeddings": "token_embd",
        ".attention.f_a_proj": None,
        ".attention.f_b_proj": None,
        ".attention.g_a_proj": None,
        ".attention.g_b_proj": None,
        ".attention.f_proj": "ssm_f_a",
        ".attention.g_proj": "ssm_g_a",
        ".attention.out_gate": "attn_gate",
        ".attention.o_proj": "attn_output",
        ".attention.dense": "attn_output",
        ".attention.A_log": TensorMap("ssm_a", exp),
        ".mlp.gate": "ffn_gate_inp",
        ".mlp.gate.expert_bias": "exp_probs_b.bias",
        **SEPARATE_EXPERTS,
        **SHARED,
        **MTP_TENSORS,
        ".final_layernorm": "layer_output_norm",
    },
    absent={"expert_weights_norm": with_experts(False)},
    ignored=("linear_proj.*",),
    prepare=prepare,
    prepare_export=published,
    block={"rope": "adjacent"},
)
