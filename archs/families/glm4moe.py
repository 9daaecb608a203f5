"""GLM 4.5 and 4.6: partial rotation, DeepSeek V3's routing, layers for predicting several tokens at the end.

Reference: transformers `models/glm4_moe/modeling_glm4_moe.py`.
"""

from archs.config import head_dim
from archs.experts import GATING
from archs.families.dots1 import DOTS1
from archs.layouts import MTP_KEYS, MTP_TENSORS
from archs.spec import Config


def rotated_width(config: Config) -> int:
    return int(head_dim(config) * config["partial_rotary_factor"])


GLM4_MOE = DOTS1.derive(
    name="glm4moe",
    hf_classes=("Glm4MoeForCausalLM",),
    vocab_keys={
        "bos_token_id": "[gMASK]", "eot_token_id": "<|user|>", "eom_token_id": "<|observation|>",
        "unknown_token_id": "<|endoftext|>",
    },
    metadata={
        "block_count": MTP_KEYS["block_count"],
        "rope.dimension_count": rotated_width,
        "expert_gating_func": lambda config: GATING["sigmoid"],
        "nextn_predict_layers": "num_nextn_predict_layers",
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
    },
    defaults={
        "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96,
        "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5, "first_k_dense_replace": 1, "n_routed_experts": 128, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "norm_topk_prob": True, "vocab_size": 151_552,
    },
    config_from_gguf=lambda keys, tensors: {
        "num_hidden_layers": keys["block_count"] - keys.get("nextn_predict_layers", 0)
    },
    flags_from_tensors={"use_qk_norm": "blk.*.attn_q_norm.weight"},
    tensors={
        "layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
        **MTP_TENSORS,
    },
    block={"ffn_norm": "post_attention_norm"},
)  # fmt: skip
