"""Mixtral: Llama's graph with routed experts; the two best of softmax, rescaled to sum to one.

Reference: transformers `models/mixtral/modeling_mixtral.py`.
"""

from archs.experts import TOGETHER
from archs.families.llama import MISTRAL
from archs.spec import Map

MIXTRAL = MISTRAL.but(
    hf_classes=("MixtralForCausalLM", "MixtralModel"),
    defaults={
        "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5, "sliding_window": None,
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    tensors={
        **TOGETHER,
        "layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.gate": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.experts.{e}.w1": Map("blk.{i}.ffn_gate_exps", stack=True),
        "layers.{i}.block_sparse_moe.experts.{e}.w2": Map("blk.{i}.ffn_down_exps", stack=True),
        "layers.{i}.block_sparse_moe.experts.{e}.w3": Map("blk.{i}.ffn_up_exps", stack=True),
    },
    other_spellings=(*TOGETHER, "layers.{i}.mlp.gate"),
)  # fmt: skip
