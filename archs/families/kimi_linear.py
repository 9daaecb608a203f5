"""Kimi Linear: delta attention in which every channel has its own decay, and in every fourth layer latent attention
without positions. DeepSeek V3's routing after a dense layer.

Reference: transformers `models/kimi_linear/`.
"""

from archs.config import lookup
from archs.experts import GATING, always, net_types
from archs.families.deepseek2 import DEEPSEEK_V3, v3_config_from_gguf
from archs.hparams.file_keys import of_original
from archs.layer_types import MLA, with_kv_heads
from archs.spec import Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors
from archs.tensor_maps import MIXTRAL_EXPERTS, QKV, gated_net
from archs.transforms import Invertible, negative_exp, reshape

LINEAR = "linear_attn_config"


def kv_heads(config: Config) -> list[int]:
    """Return the key-value heads: one in layers with latent attention, none in others."""
    count = config["num_hidden_layers"]
    if full := lookup(config, f"{LINEAR}.full_attn_layers"):
        return [int(i + 1 in full) for i in range(count)]
    layer_types = config.get("layer_types") or ["full_attention" if i and i % 4 == 0 else "" for i in range(count)]
    return [int(layer_type == "full_attention") for layer_type in layer_types]


def renormalized(config: Config) -> bool | None:
    """Return `expert_weights_norm` if the chosen weights are not rescaled to sum to one (llama.cpp drops it)."""
    normalizes = lookup(config, "moe_renormalize|norm_topk_prob")
    return False if normalizes is False else None


# llama.cpp's files store the taps channel by channel
taps = Invertible(
    lambda tensor, config: reshape(tensor, (1, tensor.shape[0], 1, tensor.shape[-1])),
    lambda tensor, config: reshape(tensor, (tensor.shape[1], 1, tensor.shape[3])),
)
DELTA: dict[str, Target] = {
    **{f".self_attn.{letter}_conv1d": TensorMap(f"ssm_conv1d_{letter}", taps) for letter in "qkv"},
    **{f".self_attn.{net}_proj": f"ssm_{net}" for net in ("f_a", "f_b", "g_a", "g_b")},
    ".self_attn.b_proj": "ssm_beta",
    ".self_attn.dt_bias": "ssm_dt.bias",
    ".self_attn.o_norm": "ssm_norm",
    ".self_attn.A_log": TensorMap("ssm_a", negative_exp),
}


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    heads, full = keys["attention.head_count"], [bool(each) for each in keys["attention.head_count_kv"]]
    numbers = {is_full: [i + 1 for i, each in enumerate(full) if each is is_full] for is_full in (True, False)}
    linear = {
        "full_attn_layers": numbers[True],
        "kda_layers": numbers[False],
        "head_dim": keys["kda.head_dim"],
        "num_heads": next((tensors[f"blk.{i - 1}.ssm_a"].size for i in numbers[False]), heads),
        "short_conv_kernel_size": keys["ssm.conv_kernel"],
    }
    return {
        **v3_config_from_gguf(keys, tensors),
        **net_types(keys, tensors),
        LINEAR: linear,
        "norm_topk_prob": keys["expert_weights_norm"],
        "n_group": keys.get("expert_group_count"),
        "topk_group": keys.get("expert_group_used_count"),
        "mla_use_nope": True,
    }


KIMI_LINEAR = DEEPSEEK_V3.derive(
    name="kimi-linear",
    hf_classes=("KimiLinearForCausalLM", "KimiLinearModel"),
    variant=None,
    config_from_gguf=config_from_gguf,
    metadata={
        "context_length": "model_max_length|max_position_embeddings",
        "attention.head_count_kv": kv_heads,
        "attention.value_length": "head_dim",
        "ssm.conv_kernel": f"{LINEAR}.short_conv_kernel_size|linear_conv_kernel_dim",
        "kda.head_dim": f"{LINEAR}.head_dim|linear_head_dim",
        "expert_used_count": "num_experts_per_token|num_experts_per_tok",
        "expert_group_count": lambda config: (
            groups if (groups := lookup(config, "num_expert_group|n_group")) not in (None, 1) else None
        ),
        "expert_shared_count": "num_shared_experts|n_shared_experts",
        "expert_weights_norm": renormalized,
        "expert_gating_func": always("sigmoid"),
        "rope.scaling.attn_factor": None,
        "rope.scaling.yarn_log_multiplier": None,
    },
    defaults={
        "model_type": "kimi_linear",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "model_max_length": 1_048_576,
        "rms_norm_eps": 1e-5,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "q_lora_rank": None,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.446,
        "n_routed_experts": None,
        "n_shared_experts": None,
        "num_experts_per_tok": None,
        "norm_topk_prob": None,
        "max_position_embeddings": None,
        "vocab_size": 163_840,
    },
    tensors={
        "lm_head": "output",  # also where the config says it is tied
        **DELTA,
        **QKV,
        ".block_sparse_moe.gate": "ffn_gate_inp",
        ".block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
        **MIXTRAL_EXPERTS,
        **gated_net("block_sparse_moe.shared_experts", "_shexp"),
        **gated_net("block_sparse_moe"),
    },
    absent={"expert_weights_norm": True, "expert_gating_func": of_original(GATING["sigmoid"])},
    block={"rope": "none", "mixer": with_kv_heads(MLA, "kimi_delta")},
)
