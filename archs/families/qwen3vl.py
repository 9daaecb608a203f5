"""Qwen3-VL (text), dense and with experts: Qwen3's layers; experts are stored together, as (in, out).

Reference: transformers `models/qwen3_vl/modeling_qwen3_vl.py`, `models/qwen3_vl_moe/`.
"""

from archs.config import lookup
from archs.experts import SEPARATE_EXPERTS
from archs.families.qwen2vl import sections
from archs.families.qwen3 import QWEN3
from archs.families.qwen3moe import QWEN3_MOE
from archs.spec import Computed, Config, TensorMap
from archs.transforms import Invertible, chain, part, transpose
from quants import Tensor


def deepstack(config: Config) -> int:
    """How many layers also get features of pictures."""
    return len(lookup(config, "vision_config.deepstack_visual_indexes") or ())


def columns(width: str) -> Invertible:
    """Experts' matrices with a row for each output; transformers 5 saves them so, published ones are transposed."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        return tensor if tensor.shape[-1] == config[width] else transpose(tensor, config)

    return Invertible(transform, transpose.invert)


KEYS: dict[str, str | Computed | None] = {
    "rope.dimension_sections": sections,
    "n_deepstack_layers": deepstack,
    "attention.sliding_window": None,
    "attention.sliding_window_pattern": None,
}

QWEN3_VL = QWEN3.derive(
    name="qwen3vl",
    hf_classes=("Qwen3VLForConditionalGeneration",),
    metadata=KEYS,
    defaults={"max_position_embeddings": 128_000, "rope_theta": 500_000.0},
)

QWEN3_VL_MOE = QWEN3_MOE.derive(
    name="qwen3vlmoe",
    hf_classes=("Qwen3VLMoeForConditionalGeneration",),
    metadata={**KEYS, "expert_weights_norm": None},
    defaults={
        "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
        "max_position_embeddings": 128_000, "rope_theta": 500_000.0, "moe_intermediate_size": 1408, "num_experts": 60,
        "num_experts_per_tok": 4,
    },
    tensors={
        "layers.{i}.mlp.experts.gate_up_proj": (
            TensorMap("blk.{i}.ffn_gate_exps.weight", chain(columns("hidden_size"), part(0, 2))),
            TensorMap("blk.{i}.ffn_up_exps.weight", chain(columns("hidden_size"), part(1, 2))),
        ),
        "layers.{i}.mlp.experts.down_proj": TensorMap("blk.{i}.ffn_down_exps.weight", columns("moe_intermediate_size")),
    },
    legacy_names=tuple(SEPARATE_EXPERTS),
)  # fmt: skip
