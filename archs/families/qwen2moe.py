"""Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, routed experts, and a shared expert behind a gate of its own.

Reference: transformers `models/qwen2_moe/modeling_qwen2_moe.py`. The router's weights are not rescaled to sum to one.
"""

from archs.config import windows
from archs.experts import FUSED_EXPERTS, SEPARATE_EXPERTS, dense_layers, renormalized
from archs.families.qwen2 import QWEN2
from archs.layouts import gated_net

QWEN2_MOE = QWEN2.derive(
    name="qwen2moe",
    hf_classes=("Qwen2MoeForCausalLM", "Qwen2MoeModel"),
    metadata={
        **windows(lambda config, layer: layer % 2 == 0 and layer < config["max_window_layers"]),
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_weights_norm": renormalized(usual=False),
    },
    defaults={
        "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4,
    },
    tensors={
        **FUSED_EXPERTS,
        "layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
        **SEPARATE_EXPERTS,
        "layers.{i}.mlp.shared_expert_gate": "blk.{i}.ffn_gate_inp_shexp",
        **gated_net("mlp.shared_expert", "_shexp"),
    },
    legacy_names=tuple(FUSED_EXPERTS),
    config_from_gguf=dense_layers,
    flags_from_tensors={"qkv_bias": "blk.*.attn_q.bias"},
    layers_vary=True,
)  # fmt: skip
