"""SmallThinker: a router that reads a layer's input, before any norm, so that experts can be fetched while attention
computes; ReLU experts; rope only in windowed layers.

Reference: the published models' own code; llama.cpp, which assumes a window of 4096 whatever a file says, and every
fourth layer, beginning with the first, without one.
"""

from archs.experts import GATING
from archs.families.llama import HALVES
from archs.hparams.file_keys import of_original
from archs.spec import Config, ConfigKeys, GgufKeys, TensorMap, Tensors, first_of_period

PERIOD = 4


def windowed(config: Config) -> list[bool]:
    return [bool(each) for each in config.get("sliding_window_layout") or ()]


def window_pattern(config: Config) -> list[bool] | None:
    """Return which layers have a window, if not all but the first of four (llama.cpp drops this)."""
    layers = windowed(config)
    usual = [i % PERIOD != 0 for i in range(len(layers))]
    return layers if any(layers) and layers != usual else None


def rope_pattern(config: Config) -> list[bool] | None:
    """Return which layers have rope, if not those with a window, or all if none has (llama.cpp drops this)."""
    layout, layers = [bool(each) for each in config.get("rope_layout") or ()], windowed(config)
    return layout if layout and layout != (layers if any(layers) else [True] * len(layout)) else None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    usual = [i % PERIOD != 0 and "attention.sliding_window" in keys for i in range(keys["block_count"])]
    windows = keys.get("attention.sliding_window_pattern") or usual
    rotating = keys.get("attention.rope_pattern") or (windows if any(windows) else [True] * len(windows))
    return {
        "sliding_window_layout": [int(each) for each in windows],
        "rope_layout": [int(each) for each in rotating],
        "sliding_window_size": keys.stored("attention.sliding_window"),
        "norm_topk_prob": True,
        "moe_primary_router_apply_softmax": keys.get("expert_gating_func") == GATING["softmax"],
        "moe_enable_secondary_experts": False,
    }


SMALLTHINKER = HALVES.derive(
    name="smallthinker",
    hf_classes=("SmallThinkerForCausalLM",),
    config_from_gguf=config_from_gguf,
    activation="",
    metadata={
        "feed_forward_length": "moe_ffn_hidden_size",
        "expert_count": "moe_num_primary_experts",
        "expert_used_count": "moe_num_active_primary_experts",
        "expert_feed_forward_length": "moe_ffn_hidden_size",
        "expert_gating_func": lambda config: GATING[
            "softmax" if config.get("moe_primary_router_apply_softmax") else "sigmoid"
        ],
        "attention.sliding_window": lambda config: config["sliding_window_size"] if any(windowed(config)) else None,
        "attention.sliding_window_pattern": window_pattern,
        "attention.rope_pattern": rope_pattern,
    },
    defaults={**dict.fromkeys(HALVES.defaults), "rms_norm_eps": 1e-6},
    absent={"expert_gating_func": of_original(GATING["sigmoid"])},
    refused={"norm_topk_prob": False, "moe_enable_secondary_experts": True},
    tensors={
        ".block_sparse_moe.primary_router": "ffn_gate_inp",
        **{
            f".block_sparse_moe.experts.{{e}}.{net}": TensorMap(f"ffn_{net}_exps", stack=True)
            for net in ("gate", "up", "down")
        },
    },
    block={
        "activation": "relu",
        "scoring": "sigmoid",
        "normalize_experts": True,
        "router_reads": "layer_input",
        "window_period": PERIOD,
        "is_global_layer": first_of_period,
        "rope_layers": "windowed",
    },
)
