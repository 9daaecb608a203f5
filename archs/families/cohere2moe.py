"""Command's layers with experts: routed ones averaged with shared ones, after leading dense layers.

Reference: transformers `models/cohere2_moe/modeling_cohere2_moe.py`. Its softmax is over the chosen experts, so their
weights sum to one whatever `norm_topk_prob` says.
"""

from collections.abc import Mapping
from typing import Any

from archs.config import windowed_layers
from archs.experts import APART, GATING, SHARED, kinds_of_nets
from archs.families.cohere2 import COHERE2
from archs.spec import Block, Config
from archs.typed_json import Unread
from quants import Tensor


def dense(config: Config) -> list[bool]:
    """For each layer whether it has one net."""
    kinds, first = config.get("mlp_layer_types"), config["first_k_dense_replace"]
    return [kinds[i] == "dense" if kinds else i < first for i in range(config["num_hidden_layers"])]


def dense_layers(config: Config) -> int:
    """How many layers at the start have one net."""
    return [*dense(config), False].index(False)


def window_pattern(config: Config) -> list[bool]:
    first = config["first_k_dense_replace"]

    def windowed(layer: int) -> bool:
        every = config["prefix_dense_sliding_window_pattern" if layer < first else "sliding_window_pattern"]
        return bool((layer - first * (layer >= first) + 1) % every)

    return windowed_layers(config, windowed)


def rope_pattern(config: Config) -> list[bool] | None:
    """Which layers have rope, where those are not the windowed and the dense ones (llama.cpp's rule)."""
    windowed, forced = window_pattern(config), config["prefix_dense_sliding_window_pattern"] == 1
    rotating = [one or (forced and of_dense) for one, of_dense in zip(windowed, dense(config), strict=True)]
    usual = [one or layer < dense_layers(config) for layer, one in enumerate(windowed)]
    return rotating if rotating != usual else None


def shared_width(config: Config) -> int | None:
    return config["intermediate_size"] * config["num_shared_experts"] or None


def restored(keys: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "first_k_dense_replace": keys["leading_dense_block_count"],
        "prefix_dense_intermediate_size": keys["feed_forward_length"],
        "intermediate_size": keys["expert_feed_forward_length"],
        "num_shared_experts": keys.get("expert_shared_count", 0),
        **kinds_of_nets(keys, tensors),
        "expert_selection_fn": "sigmoid" if keys["expert_gating_func"] == GATING["sigmoid"] else "softmax",
    }


COHERE2_MOE = COHERE2.but(
    name="cohere2moe",
    hf_classes=("Cohere2MoeForCausalLM",),
    keys={"rope_scaling": Unread()},  # but `rope_parameters`
    metadata={
        "feed_forward_length": "prefix_dense_intermediate_size|intermediate_size",
        "attention.sliding_window_pattern": window_pattern,
        "attention.rope_pattern": rope_pattern,
        "expert_feed_forward_length": "intermediate_size",
        "leading_dense_block_count": dense_layers,
        "expert_gating_func": lambda config: GATING[config["expert_selection_fn"]],
        "expert_weights_norm": lambda config: config["norm_topk_prob"] or config["expert_selection_fn"] == "softmax",
        "expert_shared_count": lambda config: config["num_shared_experts"] or None,
        "expert_shared_feed_forward_length": shared_width,
    },
    defaults={
        "head_dim": 128,
        "first_k_dense_replace": 0,
        "prefix_dense_sliding_window_pattern": 1,
        "sliding_window_pattern": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 0,
        "expert_selection_fn": "softmax",
        "norm_topk_prob": True,
    },
    restored=restored,
    rope_parameters="one",
    refused={"shared_expert_combination_strategy": "sum", "rms_norm_eps": lambda eps: eps is not None},
    tensors={
        "layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
        **APART,
        **SHARED,
    },
    layers_vary=True,
    block=Block(norm="layer", parallel=True, window_period=4, rope_layers="windowed or dense", experts_averaged=True),
)
