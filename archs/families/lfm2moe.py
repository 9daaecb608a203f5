"""LFM2 with experts: LFM2's layers, routed experts after the first dense ones, a correction of the router's scores.

Reference: transformers `models/lfm2_moe/modeling_lfm2_moe.py`.
"""

from archs.config import unless_usual
from archs.experts import GATING, renormalized
from archs.families.lfm2 import LFM2, config_from_gguf
from archs.spec import TensorMap

LFM2_MOE = LFM2.derive(
    name="lfm2moe",
    hf_classes=("Lfm2MoeForCausalLM",),
    metadata={
        "feed_forward_length": "intermediate_size",
        "expert_feed_forward_length": "moe_intermediate_size",
        "leading_dense_block_count": "num_dense_layers",
        "expert_gating_func": lambda config: GATING["sigmoid"],
        "expert_weights_norm": renormalized(usual=True),
        "expert_weights_scale": unless_usual("routed_scaling_factor", 1.0),
    },
    defaults={
        "model_type": "lfm2_moe", "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
        "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4, "routed_scaling_factor": 1.0,
    },
    flags_from_tensors={"use_expert_bias": "blk.*.exp_probs_b.bias"},
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors), "routed_scaling_factor": keys.get("expert_weights_scale", 1.0)
    },
    refused={"conv_bias": True},
    tensors={
        "layers.{i}.feed_forward.gate": "blk.{i}.ffn_gate_inp",
        "layers.{i}.feed_forward.expert_bias": "blk.{i}.exp_probs_b.bias",
        "layers.{i}.feed_forward.experts.{e}.w1": TensorMap("blk.{i}.ffn_gate_exps", stack=True),
        "layers.{i}.feed_forward.experts.{e}.w3": TensorMap("blk.{i}.ffn_up_exps", stack=True),
        "layers.{i}.feed_forward.experts.{e}.w2": TensorMap("blk.{i}.ffn_down_exps", stack=True),
    },
    block={"normalize_experts": True},
)  # fmt: skip
