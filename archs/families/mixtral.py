"""Mixtral: Llama's graph with routed experts; the two best of softmax, rescaled to sum to one.

Reference: transformers `models/mixtral/modeling_mixtral.py`.
"""

from archs.experts import FUSED_EXPERTS
from archs.families.llama import MISTRAL
from archs.spec import TensorMap

MIXTRAL = MISTRAL.derive(
    hf_classes=("MixtralForCausalLM", "MixtralModel"),
    defaults={
        "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5, "sliding_window": None, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    tensors={
        **FUSED_EXPERTS,
        "layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.gate": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.experts.{e}.w1": TensorMap("blk.{i}.ffn_gate_exps", stack=True),
        "layers.{i}.block_sparse_moe.experts.{e}.w2": TensorMap("blk.{i}.ffn_down_exps", stack=True),
        "layers.{i}.block_sparse_moe.experts.{e}.w3": TensorMap("blk.{i}.ffn_up_exps", stack=True),
    },
    legacy_names=(*FUSED_EXPERTS, "layers.{i}.mlp.gate"),
)  # fmt: skip
