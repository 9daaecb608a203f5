"""Qwen3-MoE: routed experts without a shared one, and a norm on each q and k head.

Reference: transformers `models/qwen3_moe/modeling_qwen3_moe.py`. Published configs rescale the chosen weights, so files
without `expert_weights_norm` mean that.
"""

from archs.config import windows
from archs.experts import renormalized
from archs.families.qwen2moe import QWEN2_MOE
from archs.layouts import head_norms

QWEN3_MOE = QWEN2_MOE.derive(
    name="qwen3moe",
    hf_classes=("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
    metadata={
        **windows(lambda config, layer: True),
        "expert_shared_feed_forward_length": None,
        "expert_weights_norm": renormalized(usual=True),
    },
    defaults={
        "model_type": "qwen3_moe", "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
        "moe_intermediate_size": 768, "shared_expert_intermediate_size": None, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": False,
    },
    tensors={
        **head_norms(),
    },
    block={"normalize_experts": True},
)  # fmt: skip
