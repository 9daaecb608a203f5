"""Bailing, the models called Ling and Ring.

Bailing (Ling-lite and -plus): Llama's layers with q, k and v fused, routed and shared experts. Bailing 2 (Ling 2.0): a
norm on each head of q and k, partial rotation, DeepSeek V3's routing after leading dense layers, an MTP layer. Sarvam:
Bailing 2's layers; all of a head rotates, and the routers' correction bias is used less its mean. Reference: the code
of their checkpoints; llama.cpp's graphs.
"""

import numpy as np

from archs.config import head_dim
from archs.experts import GATING, SEPARATE_EXPERTS, SHARED, net_types
from archs.families.llama import HALVES, LLAMA
from archs.hparams.file_keys import of_original, with_experts
from archs.rope import rotated_width
from archs.spec import Config, Floats, TensorMap
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS
from archs.transforms import Invertible, chain, computed, interleave_rope, projection

BAILING = LLAMA.derive(
    name="bailingmoe",
    hf_classes=("BailingMoeForCausalLM",),
    vocab=("bpe",),
    metadata={
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_weights_scale": lambda config: 1.0,
        "expert_shared_count": "num_shared_experts",
        "expert_weights_norm": lambda config: bool(config.get("norm_topk_prob")),
    },
    defaults={
        "model_type": "bailing_moe",
        "head_dim": None,
        "first_k_dense_replace": 0,
        "num_shared_experts": 0,
        "norm_topk_prob": True,
    },
    absent={"expert_weights_norm": with_experts(False)},
    refused={"norm_head": True},
    tensors={
        **dict.fromkeys(name for name in LLAMA.tensors if ".self_attn." in name or ".mlp." in name),
        "embed_tokens": None,
        "word_embeddings": "token_embd",
        ".attention.query_key_value": (
            TensorMap("attn_q", chain(projection("q"), interleave_rope("num_attention_heads"))),
            TensorMap("attn_k", chain(projection("k"), interleave_rope("num_key_value_heads"))),
            TensorMap("attn_v", projection("v")),
        ),
        ".attention.dense": "attn_output",
        ".mlp.gate": "ffn_gate_inp",
        **SEPARATE_EXPERTS,
        **SHARED,
    },
    config_from_gguf=lambda keys, tensors: {"norm_topk_prob": keys["expert_weights_norm"]},
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "use_qkv_bias": "blk.*.attn_q.bias"},
    block={"normalize_experts": True},
)


def shared_width(config: Config) -> int:
    """Return the width of all shared experts together."""
    given = config.get("moe_shared_expert_intermediate_size")
    return int(given or config["moe_intermediate_size"] * config["num_shared_experts"])


BAILING2 = HALVES.derive(
    name="bailingmoe2",
    hf_classes=("BailingMoeV2ForCausalLM",),
    metadata={
        **{key: BAILING.metadata[key] for key in BAILING.metadata if key.startswith(("expert", "leading"))},
        "block_count": MTP_KEYS["block_count"],
        "vocab_size": "vocab_size",
        "rope.dimension_count": rotated_width,
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "expert_gating_func": lambda config: GATING[config["score_function"]],
        "expert_shared_feed_forward_length": shared_width,
        "expert_weights_scale": "routed_scaling_factor",
        "nextn_predict_layers": "num_nextn_predict_layers",
    },
    defaults={
        "model_type": "bailing_moe_v2",
        "head_dim": None,
        "first_k_dense_replace": 0,
        "num_shared_experts": 0,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 1.0,
        "rope_theta": 600_000.0,
    },
    tensors={
        **dict.fromkeys(name for name in HALVES.tensors if ".self_attn." in name),
        "embed_tokens": None,
        "word_embeddings": "token_embd",
        ".attention.query_key_value": "attn_qkv",
        ".attention.query_layernorm": "attn_q_norm",
        ".attention.key_layernorm": "attn_k_norm",
        ".attention.dense": "attn_output",
        ".mlp.gate": "ffn_gate_inp",
        ".mlp.gate.expert_bias": "exp_probs_b.bias",
        **SEPARATE_EXPERTS,
        **SHARED,
        **MTP_TENSORS,
        ".final_layernorm": "layer_output_norm",
    },
    config_from_gguf=lambda keys, tensors: {
        "norm_topk_prob": keys["expert_weights_norm"],
        "topk_group": keys.stored("expert_group_used_count"),
        "score_function": "sigmoid" if keys["expert_gating_func"] == GATING["sigmoid"] else "softmax",
        "first_k_dense_replace": net_types(keys, tensors)["mlp_layer_types"].count("dense"),
    },
    absent={"expert_weights_norm": with_experts(False), "expert_gating_func": of_original(GATING["sigmoid"])},
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "use_qkv_bias": "blk.*.attn_qkv.bias"},
    layers_vary=True,
    block={"normalize_experts": True},
)


def _centred(values: Floats) -> Floats:
    return values - np.mean(values, dtype=np.float32)


less_mean = Invertible(lambda tensor, config: computed(tensor, _centred))

SARVAM = BAILING2.derive(
    hf_classes=("SarvamMoEForCausalLM", "modeling_sarvam_moe.SarvamMoEForCausalLM"),
    metadata={"rope.dimension_count": head_dim},
    defaults={"model_type": "sarvam_moe", "partial_rotary_factor": None, "rope_theta": 10_000.0},
    tensors={".mlp.gate.expert_bias": TensorMap("exp_probs_b.bias", less_mean)},
)
