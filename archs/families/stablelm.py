"""StableLM 2 and 3B: Llama's layers with layer norms and partly rotating heads; the 12B has the feed-forward net beside
attention, and norms of their own for each head of q and k.

Reference: transformers `models/stablelm/modeling_stablelm.py`.
"""

from archs.families.qwen2 import HALVES
from archs.rope import rotated_width, unusual_base
from archs.spec import TensorMap, in_layers

STABLELM = HALVES.derive(
    name="stablelm",
    hf_classes=("StableLmForCausalLM", "StableLMEpochForCausalLM", "StableLmModel"),
    metadata={
        "attention.layer_norm_rms_epsilon": None,
        "rope.dimension_count": rotated_width,
        "rope.freq_base": unusual_base,
        "use_parallel_residual": "use_parallel_residual",
    },
    defaults={
        "hidden_size": 2560, "num_key_value_heads": 32, "intermediate_size": 6912, "max_position_embeddings": 4096,
        "rms_norm_eps": None, "layer_norm_eps": lambda config: config.get("norm_eps", 1e-5),
        "partial_rotary_factor": lambda config: config.get("rope_pct", 0.25), "use_parallel_residual": False,
        "vocab_size": 50_304,
    },
    tensors=in_layers({
        "self_attn.q_layernorm.norms.{e}": TensorMap("attn_q_norm", stack=True),
        "self_attn.k_layernorm.norms.{e}": TensorMap("attn_k_norm", stack=True),
    }),
    flags_from_tensors={
        "attention_bias": None, "mlp_bias": None, "use_qkv_bias": "blk.*.attn_q.bias",
        "qk_layernorm": "blk.*.attn_q_norm.weight",
    },
    block={"norm": "layer", "parallel": "use_parallel_residual"},
)  # fmt: skip
