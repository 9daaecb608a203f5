"""Laguna: windows in some layers, each type with heads, rotation and base of its own; a gate for each head or value,
through softplus; sigmoids with a correction bias for experts after leading dense layers, and a shared expert.

Reference: transformers `models/laguna/`.
"""

from archs.config import head_dim, windowed_layers
from archs.experts import FUSED_EXPERTS, SEPARATE_EXPERTS, SHARED, always, net_types
from archs.families.llama import HALVES
from archs.hparams.file_keys import with_experts
from archs.rope import rotated_width
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors, first_of_period
from archs.tensor_maps import gated_net, head_norms


def windowed(config: Config) -> list[bool] | None:
    """Return which layers have a window, if any can."""
    return windowed_layers(config, lambda layer: False) if config.get("sliding_window") else None


def leading_dense(config: Config) -> int:
    """Return how many leading layers have no experts."""
    net_types = config.get("mlp_layer_types") or ["dense", "sparse"]
    return next((i for i, net_type in enumerate(net_types) if net_type != "dense"), len(net_types))


def heads(config: Config) -> list[int]:
    given = config.get("num_attention_heads_per_layer")
    return list(given or [config["num_attention_heads"]] * config["num_hidden_layers"])


def rotated_in_windows(config: Config) -> int | None:
    share = config.get("partial_rotary_factor_local")
    return int(head_dim(config) * share) if share and windowed(config) else None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    heads, gates = keys["attention.head_count"], tensors["blk.0.attn_gate.weight"].shape[0]
    return {
        **net_types(keys, tensors),
        "num_attention_heads": heads[0],
        "num_attention_heads_per_layer": heads,
        "gating": "per-head" if gates == heads[0] else "per-element",
    }


LAGUNA = HALVES.derive(
    name="laguna",
    hf_classes=("LagunaForCausalLM",),
    metadata={
        "vocab_size": "vocab_size",
        "attention.head_count": heads,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": windowed,
        "rope.dimension_count": rotated_width,
        "rope.dimension_count_swa": rotated_in_windows,
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_weights_norm": lambda config: True,
        "expert_weights_scale": "moe_routed_scaling_factor",
        "expert_gating_func": always("sigmoid"),
        "leading_dense_block_count": leading_dense,
    },
    defaults={
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 40,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8,
        "num_experts": 256,
        "moe_routed_scaling_factor": 1.0,
        "vocab_size": 100_352,
    },
    refused={"moe_router_logit_softcapping": lambda value: bool(value), "moe_apply_router_weight_on_input": True},
    tensors={
        **head_norms(),
        ".self_attn.g_proj": "attn_gate",
        **FUSED_EXPERTS,
        ".mlp.gate": "ffn_gate_inp",
        ".mlp.experts.e_score_correction_bias": "exp_probs_b.bias",
        ".mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        **SEPARATE_EXPERTS,
        **SHARED,
        **gated_net("mlp.shared_expert", "_shexp"),
    },
    config_from_gguf=config_from_gguf,
    rope_parameters="by type",
    layers_vary=True,
    absent={"expert_weights_norm": with_experts(False)},
    block={
        "scoring": "sigmoid",
        "normalize_experts": True,
        "attention_gate": "softplus",
        "scales_windowed_rope": False,
        "window_period": 4,
        "is_global_layer": first_of_period,
    },
)
