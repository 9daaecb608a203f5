"""Mellum 2: Qwen3's layers with experts, windows in some layers, each kind of layer with rotary settings of its own.

Reference: transformers `models/mellum/modeling_mellum.py`. Layers for predicting several tokens are not supported.
"""

from archs.config import windowed_layers
from archs.experts import kinds_of_nets
from archs.families.qwen3 import QWEN3_MOE
from archs.typed_json import Unread

MELLUM = QWEN3_MOE.derive(
    name="mellum",
    hf_classes=("MellumForCausalLM",),
    vocab=("bpe",),
    keys={"rope_scaling": Unread(), "rope_theta": Unread()},  # but `rope_parameters`
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: (
            windowed_layers(config, lambda layer: False) if config.get("sliding_window") else None
        ),
    },
    defaults={
        "hidden_size": 2304, "intermediate_size": 7168, "num_hidden_layers": 28, "head_dim": 128,
        "max_position_embeddings": 131_072, "rope_theta": lambda config: 500_000.0, "rope_local_base_freq": 10_000.0,
        "sliding_window": 1024, "moe_intermediate_size": 896, "num_experts": 64, "norm_topk_prob": True,
        "vocab_size": 98_304,
    },
    config_from_gguf=kinds_of_nets,
    rope_parameters="by kind",
    refused={"num_mtp_layers": lambda count: bool(count)},
)  # fmt: skip
