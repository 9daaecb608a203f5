"""OLMoE: routed experts whose weights are not rescaled, and norms over all of q and of k.

Reference: transformers `models/olmoe/modeling_olmoe.py`.
"""

from archs.experts import renormalized
from archs.families.qwen3moe import QWEN3_MOE

OLMOE = QWEN3_MOE.derive(
    name="olmoe",
    hf_classes=("OlmoeForCausalLM", "OlmoeModel"),
    metadata={
        "attention.clamp_kqv": "clip_qkv",
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
        "expert_feed_forward_length": None,
        "expert_weights_norm": renormalized(usual=False),
    },
    defaults={
        "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": lambda config: config["num_attention_heads"], "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "num_experts": 64, "vocab_size": 50_304,
    },
    config_from_gguf=None,
    block={"qkv_steps": ("norm", "clamp", "rope"), "normalize_experts": False},
)  # fmt: skip
