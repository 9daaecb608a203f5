"""Maple: Qwen3-MoE's layers with windows in some, only which rotate, and gated units that are clamped.

Reference: llama.cpp's converter and graph.
"""

from archs.config import other_than, windowed_layers
from archs.families.qwen3 import QWEN3_MOE
from archs.rope import rotated_width

LIMIT = 7.0  # of the experts' gated units, in the model's own code

MAPLE = QWEN3_MOE.derive(
    name="maple",
    hf_classes=("MapleForCausalLM",),
    metadata={
        "vocab_size": "vocab_size",
        "rope.dimension_count": rotated_width,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: windowed_layers(config, lambda layer: True),
        "swiglu_clamp_exp": lambda config: [LIMIT] * config["num_hidden_layers"],
        "expert_weights_norm": None,
    },
    defaults={"model_type": "maple", "head_dim": None, "norm_topk_prob": True},
    refused={
        "hidden_act": other_than("silu"),
        "num_shared_experts": lambda count: bool(count),
        "norm_topk_prob": False,
        "nope_on_global_attention": lambda says: not says,
    },
    config_from_gguf=lambda keys, tensors: {
        "nope_on_global_attention": True,
        "layer_types": [
            "sliding_attention" if windowed else "full_attention"
            for windowed in keys["attention.sliding_window_pattern"]
        ],
    },
    block={"rope_layers": "windowed"},
)
