"""Granite MoE, with or without an expert that all tokens share: softmax over the chosen experts' scores.

Reference: transformers `models/granitemoe/modeling_granitemoe.py`, `models/granitemoeshared/`.
"""

from collections.abc import Mapping
from typing import Any

from archs.experts import together
from archs.families.granite import GRANITE
from archs.spec import Block, Map
from archs.transforms import part
from quants import Tensor


def restored(keys: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    width = keys.get("expert_shared_feed_forward_length")
    if width is None:
        return {}
    return {
        "architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared",
        "shared_intermediate_size": width,
    }  # fmt: skip


GRANITE_MOE = GRANITE.but(
    name="granitemoe",
    hf_classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    vocab_keys={"add_space_prefix": False},
    metadata={"expert_shared_feed_forward_length": lambda config: config.get("shared_intermediate_size") or None},
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    restored=restored,
    other_spellings=(*together("block_sparse_moe"), "layers.{i}.block_sparse_moe.router"),
    tensors={
        **together("block_sparse_moe"),
        "layers.{i}.block_sparse_moe.router": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.router.layer": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.input_linear": (
            Map("blk.{i}.ffn_gate_exps", part(0, 2)), Map("blk.{i}.ffn_up_exps", part(1, 2)),
        ),
        "layers.{i}.block_sparse_moe.output_linear": "blk.{i}.ffn_down_exps",
        "layers.{i}.shared_mlp.input_linear": (
            Map("blk.{i}.ffn_gate_shexp", part(0, 2)), Map("blk.{i}.ffn_up_shexp", part(1, 2)),
        ),
        "layers.{i}.shared_mlp.output_linear": "blk.{i}.ffn_down_shexp",
    },
    block=Block(scoring="softmax_of_top", logit_scale="divide", rope_key="rope.scaling.finetuned"),
)  # fmt: skip
