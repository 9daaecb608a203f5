"""DeepSeek V3.2 and GLM 5: DeepSeek V3 with an indexer that selects the keys each token attends to, and MTP layers. In
GLM 5 layers may reuse the selection of the last indexer before them.

Reference: transformers `models/deepseek_v32/`, `models/glm_moe_dsa/`.
"""

from archs.config import lookup
from archs.experts import GATING, net_types
from archs.families.deepseek2 import DEEPSEEK_V3, v3_config_from_gguf
from archs.families.glm4 import GLM4_MOE_LITE
from archs.hparams.file_keys import of_original, with_experts
from archs.spec import Config, ConfigKeys, GgufKeys, Target, Tensors
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS

INDEXER_KEYS = {
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
}
INDEXER: dict[str, Target] = {
    ".self_attn.indexer.wq_b": "indexer.attn_q_b",
    ".self_attn.indexer.wk": "indexer.attn_k",
    ".self_attn.indexer.k_norm": "indexer.k_norm",
    ".self_attn.indexer.weights_proj": "indexer.proj",
}


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {**v3_config_from_gguf(keys, tensors), **net_types(keys, tensors)}


DEEPSEEK_V32 = DEEPSEEK_V3.derive(
    name="deepseek32",
    variant=None,
    hf_classes=("DeepseekV32ForCausalLM",),
    config_from_gguf=config_from_gguf,
    metadata={**MTP_KEYS, **INDEXER_KEYS},
    defaults={
        **DEEPSEEK_V3.defaults,
        "model_type": "deepseek_v32",
        "max_position_embeddings": 163_840,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 2048,
        "num_nextn_predict_layers": 0,
    },
    tensors={**MTP_TENSORS, **INDEXER},
    absent={"expert_gating_func": of_original(GATING["sigmoid"])},
    block={"sections_rotate_halves": False},
)


def chooses(config: Config) -> list[bool] | None:
    """Return which layers have an indexer, if the config says so."""
    indexer_types = lookup(config, "indexer_types")
    return None if indexer_types is None else [indexer_type == "full" for indexer_type in indexer_types]


def dsa_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return which layers have an indexer; files of other converters may not say."""
    config, types = config_from_gguf(keys, tensors), keys.get("attention.indexer.types")
    return config if types is None else config | {"indexer_types": ["full" if each else "shared" for each in types]}


GLM_DSA = GLM4_MOE_LITE.derive(
    name="glm-dsa",
    hf_classes=("GlmMoeDsaForCausalLM",),
    config_from_gguf=dsa_from_gguf,
    metadata={**INDEXER_KEYS, "attention.indexer.types": chooses},
    defaults={
        "model_type": "glm_moe_dsa",
        "hidden_size": 6144,
        "intermediate_size": 12_288,
        "num_hidden_layers": 78,
        "num_attention_heads": 64,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
        "q_lora_rank": 2048,
        "routed_scaling_factor": 2.5,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
    },
    tensors=INDEXER,
    absent={"expert_gating_func": with_experts(GATING["sigmoid"])},
    block={"indexer_rope": "adjacent", "sections_rotate_halves": False},
)
