"""GLM 4.7 Flash: DeepSeek V3's layers, GLM's vocabulary, layers for predicting several tokens at the end.

Reference: transformers `models/glm4_moe_lite/modeling_glm4_moe_lite.py`.
"""

from archs.experts import kinds_of_nets
from archs.families.deepseek2 import DEEPSEEK_V3, v3_config_from_gguf
from archs.families.glm4moe import GLM4_MOE
from archs.layouts import MTP_KEYS, MTP_TENSORS, mtp_counts

GLM4_MOE_LITE = DEEPSEEK_V3.derive(
    hf_classes=("Glm4MoeLiteForCausalLM",),
    vocab_keys=GLM4_MOE.vocab_keys,
    metadata={
        **MTP_KEYS,
    },
    defaults={
        "model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10_240, "num_hidden_layers": 47,
        "num_attention_heads": 20, "max_position_embeddings": 202_752, "rms_norm_eps": 1e-5, "first_k_dense_replace": 1,
        "n_routed_experts": 64, "moe_intermediate_size": 1536, "num_experts_per_tok": 4, "q_lora_rank": 768,
        "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8,
        "num_nextn_predict_layers": 0, "vocab_size": 154_880,
    },
    config_from_gguf=lambda keys, tensors: {
        **v3_config_from_gguf(keys, tensors),
        **mtp_counts(keys),
        **kinds_of_nets(keys, tensors),
    },
    tensors=MTP_TENSORS,
    refused={"partial_rotary_factor": lambda share: share not in (None, 1)},
)  # fmt: skip
