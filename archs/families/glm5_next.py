"""GLM-5-Next (GLM-5.3-Flash), its text part: DeepSeek V4's streams of hidden states, averaged after the last layer;
Kimi's delta attention with bounded decay; in every fourth layer latent attention without positions, whose indexer
selects pools of keys. DeepSeek V3's routing, with gated units clamped.

Reference: transformers `models/glm5_next/`.
"""

from archs.config import lookup, other_than
from archs.experts import GATING, always
from archs.families.deepseek4 import STREAMS
from archs.families.deepseek32 import GLM_DSA, dsa_from_gguf
from archs.families.kimi_linear import DELTA
from archs.hparams.config_keys import SOME
from archs.hparams.file_keys import with_experts
from archs.layer_types import MLA, unless_one_stream, with_kv_heads
from archs.spec import Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import QKV
from archs.transforms import chain, flat, negative_exp
from quants.errors import ModelError

LINEAR = "linear_attn_config"
USUAL_BOUND = -5.0


def kv_heads(config: Config) -> list[int]:
    """Return the key-value heads: one in layers with latent attention, none in others."""
    count, mtp_layers = config["num_hidden_layers"], config.get("num_nextn_predict_layers") or 0
    layer_types = config.get("layer_types") or [
        ("linear" if i % 4 != 3 else "indexed") + "_attention" for i in range(count)
    ]
    return [int(layer_type != "linear_attention") for layer_type in layer_types] + [1] * mtp_layers


def head_width(config: Config) -> int:
    """Return the head width of delta attention, which has as many heads as latent attention."""
    heads = lookup(config, f"{LINEAR}.num_heads|linear_num_heads")
    if heads not in (None, config["num_attention_heads"]):
        raise ModelError(
            f"config.json has {heads} heads of delta attention and {config['num_attention_heads']} of latent "
            "attention; glm5-next files have as many of both"
        )
    return int(lookup(config, f"{LINEAR}.head_dim|linear_head_dim"))


def bound(config: Config) -> float | None:
    """Return the bound of a channel's log decay per token (llama.cpp drops the default of a config without one)."""
    linear = config.get(LINEAR) or {}
    value = linear.get("gate_lower_bound", config.get("linear_lower_bound", USUAL_BOUND))
    return USUAL_BOUND if value is None and linear and linear.get("safe_gate", True) else value


def dense_layers(config: Config) -> int:
    """Return the leading layers without experts."""
    net_types = config.get("mlp_layer_types")
    if net_types is None:
        leading = config.get("first_k_dense_replace")
        return min(3 if leading is None else int(leading), int(config["num_hidden_layers"]))
    return next((i for i, net_type in enumerate(net_types) if net_type != "dense"), len(net_types))


def limits(config: Config) -> list[float] | None:
    limit, mtp_layers = config.get("swiglu_limit"), config.get("num_nextn_predict_layers") or 0
    return [limit] * (config["num_hidden_layers"] + mtp_layers) if limit else None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return layer types, and delta attention's settings. Raises ModelError for several limits of gated units."""
    count = keys["block_count"] - keys.get("nextn_predict_layers")
    bounds, clamps = keys.get("kda.gate_lower_bound"), keys.get("swiglu_clamp_exp") or [None]
    if {*clamps} != {clamps[0]}:
        raise ModelError("its layers clamp gated units to several limits; a config has one for all")
    full = [bool(each) for each in keys["attention.head_count_kv"]][:count]
    return {
        **dsa_from_gguf(keys, tensors),
        "num_nextn_predict_layers": count and keys["block_count"] - count,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": keys["attention.key_length_mla"],
        "mla_use_nope": True,
        "layer_types": ["indexed_attention" if each else "linear_attention" for each in full],
        "swiglu_limit": clamps[0],
        "mhc": True,
        LINEAR: {
            "head_dim": keys["kda.head_dim"],
            "num_heads": keys["attention.head_count"],
            "short_conv_kernel_size": keys["ssm.conv_kernel"],
            "gate_lower_bound": bounds,
            "safe_gate": bounds is not None,
        },
    }


GLM5_NEXT = GLM_DSA.derive(
    name="glm5-next",
    hf_classes=("Glm5NextForConditionalGeneration",),
    config_from_gguf=config_from_gguf,
    part=True,
    float32=("*.hc_*fn.weight", "*indexer_compressor_*"),
    metadata={
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_epsilon": lambda config: 1e-6,
        "attention.latent_norm_epsilon": None,
        "leading_dense_block_count": dense_layers,
        "ssm.conv_kernel": f"{LINEAR}.short_conv_kernel_size|linear_conv_kernel_dim",
        "kda.head_dim": head_width,
        "kda.gate_lower_bound": bound,
        "attention.indexer.kpool": "index_kpool",
        "attention.indexer.kpool_select_tail": "index_kpool_always_select_tail",
        "hyper_connection.count": "hc_mult",
        "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
        "hyper_connection.epsilon": "hc_eps",
        "swiglu_clamp_exp": limits,
        "swiglu_clamp_shexp": limits,
        "expert_gating_func": always("sigmoid"),
        "rope.freq_base": None,
    },
    defaults={
        **dict.fromkeys(("head_dim", "first_k_dense_replace")),
        "model_type": "glm5_next_text",
        "hidden_size": 4096,
        "num_hidden_layers": 45,
        "max_position_embeddings": 1_048_576,
        "n_routed_experts": 288,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "swiglu_limit": 10.0,
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "index_kpool": 16,
        "index_kpool_always_select_tail": True,
    },
    keys={"qk_rope_head_dim": SOME, "head_dim": SOME},
    refused={
        "qk_rope_head_dim": bool,
        "index_kpool_always_select_tail": False,
        "mhc": False,
        "hidden_act": other_than("silu", "swish"),  # the activation of experts in any case
    },
    tensors={
        **STREAMS,
        **DELTA,
        ".self_attn.A_log": TensorMap("ssm_a", chain(negative_exp, flat)),
        **QKV,
        "lm_head": GLM_DSA.tensors["lm_head"],
        ".self_attn.indexer.index_kpool_compress_ape": "indexer_compressor_ape.weight",
        ".self_attn.indexer.index_kpool_compress_gate": "indexer_compressor_gate.weight",
    },
    absent={"swiglu_clamp_shexp": "=swiglu_clamp_exp", "expert_gating_func": with_experts(GATING["sigmoid"])},
    block={
        "rope": "none",
        "clamps_gate_first": True,
        "mixer": with_kv_heads(MLA, "kimi_delta"),
        "arrangement": unless_one_stream("mixed_streams"),
    },
)
