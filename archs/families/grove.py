"""Grove MoE: Qwen3-MoE's layers, in which each two experts share an additional small one, weighted by a twentieth.

Reference: llama.cpp's converter and graph; the published code comes with the weights. The small experts read the
others' outputs, as in that graph. Numbers missing in the config are the published code's.
"""

from archs.experts import separate_experts
from archs.families.qwen3 import QWEN3_MOE
from archs.spec import Target, TensorMap
from archs.tensor_maps import MATRICES

EACH, SHARE = 2, 0.05
CHUNKS: dict[str, Target] = {
    name.replace(".experts.", ".chunk_experts."): TensorMap(f"ffn_{matrix.removesuffix('_proj')}_chexps", stack=True)
    for name, matrix in zip(separate_experts("mlp"), MATRICES, strict=True)
}

GROVE = QWEN3_MOE.derive(
    name="grovemoe",
    hf_classes=("GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM"),
    metadata={
        "expert_chunk_feed_forward_length": lambda config: config.get("head_dim") or 128,
        "experts_per_group": lambda config: EACH,
        "expert_group_scale": lambda config: SHARE,
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
        "expert_weights_norm": None,
    },
    defaults={"model_type": "grove_moe"},
    ignored=("*.expert_bias",),
    tensors=CHUNKS,
)
