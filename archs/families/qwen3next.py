"""Qwen3-Next: gated delta nets in three of four layers, gated attention in the fourth, experts with a shared one. Norm
weights are stored minus one, except in the delta nets. One projection makes, for each key head, its query, key, values
and gates; here each type is together.

Qwen3.5, dense and with experts: Qwen3-Next's layers with a projection for each type. Value heads that share a key are
neighbours there; here keys take turns, as ggml repeats them. Reference: transformers `models/qwen3_next/`,
`models/qwen3_5/`, `models/qwen3_5_moe/`.
"""

import numpy as np

from archs import decisions
from archs.config import required
from archs.experts import SEPARATE_EXPERTS, dense_layers, renormalized
from archs.families.qwen2 import sections
from archs.families.qwen3 import QWEN3_MOE
from archs.layer_types import recurrent_layers
from archs.rope import rotated_width
from archs.spec import Config, ConfigKeys, GgufKeys, Index, TensorMap, Tensors, Transform, in_layers
from archs.tensor_maps import MTP_KEYS, mtp_layers, published_mtp
from archs.transforms import add_one, chain, channels_and_taps, flat, negative_exp, reordered, share, transpose
from quants import FormatError


def recurrent(config: Config) -> list[bool]:
    layer_types, every = config.get("layer_types"), config["full_attention_interval"]
    layer_types = layer_types or [
        i % every == every - 1 and "full_attention" for i in range(config["num_hidden_layers"])
    ]
    return [layer_type != "full_attention" for layer_type in layer_types] + [False] * config["num_nextn_predict_layers"]


def of_groups(pick: str) -> Transform:
    """Return rows stored by key head (its query, its key, its values, their gates) → those of `pick`, by type."""

    def picked(count: int, config: Config) -> Index:
        groups, size, heads, width = (
            required(config, f"linear_{each}")
            for each in ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
        )
        if count % groups:
            raise FormatError(f"{count} rows, not as many for each of {groups} heads of keys")
        values = heads // groups * width
        parts = np.split(np.arange(count).reshape(groups, -1), [size, 2 * size, 2 * size + values], axis=1)
        return np.concatenate([parts["qkvz".index(letter)].reshape(-1) for letter in pick])

    return share(picked)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    count = keys["block_count"] - keys.get("nextn_predict_layers")
    layer_types = ["linear_attention" if is_so else "full_attention" for is_so in keys["attention.recurrent_layers"]]
    return {
        "linear_value_head_dim": keys["ssm.inner_size"] // keys["ssm.time_step_rank"],
        "layer_types": layer_types[:count],
        "partial_rotary_factor": keys["rope.dimension_count"] / keys["attention.key_length"],
        **dense_layers({"block_count": count}, tensors),
    }


QWEN3_NEXT = QWEN3_MOE.derive(
    name="qwen3next",
    hf_classes=("Qwen3NextForCausalLM",),
    vocab=("bpe",),
    prepare=mtp_layers,
    prepare_export=published_mtp,
    config_from_gguf=config_from_gguf,
    metadata={
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.inner_size": lambda config: config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": "full_attention_interval",
        **MTP_KEYS,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_weights_norm": renormalized(usual=True),
        "attention.recurrent_layers": recurrent,
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
        "rope.dimension_count": rotated_width,
    },
    defaults={
        "model_type": "qwen3_next",
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
    tensors={
        ".input_layernorm": TensorMap("attn_norm", add_one),
        ".self_attn.q_norm": TensorMap("attn_q_norm", add_one),
        ".self_attn.k_norm": TensorMap("attn_k_norm", add_one),
        ".linear_attn.in_proj_qkvz": (TensorMap("attn_qkv", of_groups("qkv")), TensorMap("attn_gate", of_groups("z"))),
        ".linear_attn.in_proj_ba": "ssm_ba",
        ".linear_attn.conv1d": TensorMap("ssm_conv1d", channels_and_taps),
        ".linear_attn.dt_bias": "ssm_dt.bias",
        ".linear_attn.A_log": TensorMap("ssm_a", chain(negative_exp, flat)),
        ".linear_attn.norm": "ssm_norm",
        ".linear_attn.out_proj": "ssm_out",
        ".post_attention_layernorm": TensorMap("post_attention_norm", add_one),
        ".eh_proj": "nextn.eh_proj",
        ".enorm": TensorMap("nextn.enorm", add_one),
        ".hnorm": TensorMap("nextn.hnorm", add_one),
        ".shared_head.norm": TensorMap("nextn.shared_head_norm", add_one),
        "norm": TensorMap("output_norm", add_one),
    },
    block={
        "ffn_norm": "post_attention_norm",
        "qkv_steps": ("clamp", "gates", "norm", "rope"),
        "mixer": recurrent_layers("gated_delta", 4),
    },
)


def taking_turns(width: str = "", after_keys: bool = False) -> Transform:
    """Return rows of value heads re-ordered; width: the config key for rows of a head (one without). after_keys: after
    the rows of queries and keys, which stay.
    """

    def order(total: int, config: Config) -> Index:
        groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        skipped = 2 * groups * config["linear_key_head_dim"] if after_keys else 0
        count = heads * (config[width] if width else 1)
        if heads % groups or skipped + count != total:
            raise FormatError(f"{total} rows; {groups} and {heads} heads of a linear attention have others")
        rows = np.arange(count).reshape(groups, heads // groups, -1)
        return np.concatenate([np.arange(skipped), skipped + rows.swapaxes(0, 1).reshape(-1)])

    return reordered(order)


VALUES = "linear_value_head_dim"

QWEN35_MOE = QWEN3_NEXT.derive(
    name="qwen35moe",
    hf_classes=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    metadata={"rope.dimension_sections": sections, "feed_forward_length": "intermediate_size"},
    block={"interleaved_sections": True},
    defaults={
        "model_type": "qwen3_5_moe_text",
        "intermediate_size": None,
        "num_hidden_layers": 40,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "mrope_section": [11, 11, 10],
        "vocab_size": 248_320,
    },
    tensors={
        ".linear_attn.in_proj_qkvz": None,
        ".linear_attn.in_proj_ba": None,
        ".linear_attn.in_proj_qkv": TensorMap("attn_qkv", taking_turns(VALUES, after_keys=True)),
        ".linear_attn.in_proj_z": TensorMap("attn_gate", taking_turns(VALUES)),
        ".linear_attn.in_proj_a": TensorMap("ssm_alpha", taking_turns()),
        ".linear_attn.in_proj_b": TensorMap("ssm_beta", taking_turns()),
        ".linear_attn.conv1d": TensorMap("ssm_conv1d", chain(channels_and_taps, taking_turns(VALUES, after_keys=True))),
        ".linear_attn.dt_bias": TensorMap("ssm_dt.bias", taking_turns()),
        ".linear_attn.A_log": TensorMap("ssm_a", chain(taking_turns(), negative_exp, flat)),
        ".linear_attn.out_proj": TensorMap("ssm_out", chain(transpose, taking_turns(VALUES), transpose)),
    },
    rope_parameters="one",
    legacy_names=tuple(in_layers(SEPARATE_EXPERTS)),
)

QWEN35 = QWEN35_MOE.derive(
    name="qwen35",
    hf_classes=(
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "OpenJevModel",
        "LevModel",
        "KevModel",
        "NimbleModel",
    ),
    wrappers=("MiniCPMV4_6ForConditionalGeneration",),
    metadata={
        "expert_count": None,
        "expert_used_count": None,
        "expert_feed_forward_length": None,
        "expert_shared_feed_forward_length": None,
        "expert_weights_norm": None,
        **decisions.keys_of(),
        "embedding_length_out": lambda config: (config.get("decision") or {}).get("head_rows"),
    },
    tensors={"classifier.out_proj": "cls.output"},  # of Kev
    defaults={
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
)
