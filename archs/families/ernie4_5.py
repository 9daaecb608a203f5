"""ERNIE 4.5 (dense): Llama's layers with an explicit head width. Adjacent pairs rotate in HF too.

PaddleOCR-VL (text): ERNIE 4.5's layers; halves rotate, with multi-section rope for images. ERNIE 4.5 MoE: softmax
routing with a correction bias, leading dense layers, shared experts. Adjacent pairs rotate, as in ggml. Reference:
transformers `models/ernie4_5/modeling_ernie4_5.py`, `models/ernie4_5_moe/modeling_ernie4_5_moe.py`,
`models/paddleocr_vl/`.
"""

from archs.config import head_dim, other_than
from archs.experts import shared_width
from archs.families.deepseek2 import DEEPSEEK_V3
from archs.families.llama import HALVES
from archs.families.qwen2 import sections
from archs.layer_types import experts_in_turn
from archs.spec import ConfigKeys, GgufKeys, Tensors

ERNIE4_5 = HALVES.derive(
    name="ernie4_5",
    hf_classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5Model"),
    vocab=("sentencepiece", "bpe"),
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "vocab_size": 103_424,
    },
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "use_bias": "blk.*.attn_q.bias"},
    block={"rope": "adjacent", "sections_rotate_halves": False},
)

PADDLEOCR = ERNIE4_5.derive(
    name="paddleocr",
    hf_classes=("PaddleOCRVLForConditionalGeneration",),
    vocab=("sentencepiece", "bpe"),
    metadata={"rope.dimension_sections": sections},
    defaults={"mrope_section": [16, 24, 24]},
    block={"rope": "halves"},
)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return which layers have experts: those that are a multiple of the interval, from the first to the last."""
    sparse = [i for i in range(keys["block_count"]) if f"blk.{i}.ffn_gate_inp.weight" in tensors]
    first, last = (sparse[0], sparse[-1]) if sparse else (keys["block_count"], -1)
    every = keys["interleave_moe_layer_step"]
    return {"moe_layer_start_index": first, "moe_layer_end_index": last, "moe_layer_interval": every}


ERNIE45_MOE = ERNIE4_5.derive(
    name="ernie4_5-moe",
    hf_classes=("Ernie4_5_MoeForCausalLM",),
    metadata={
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "moe_num_shared_experts",
        "expert_shared_feed_forward_length": shared_width,
        "interleave_moe_layer_step": "moe_layer_interval",
        "leading_dense_block_count": "moe_layer_start_index",
    },
    defaults={
        "model_type": "ernie4_5_moe",
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "head_dim": head_dim,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_intermediate_size": 1536,
        "moe_num_shared_experts": 2,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
    },
    config_from_gguf=config_from_gguf,
    refused={"moe_norm_min": other_than(1e-12)},
    tensors={
        **{name: target for name, target in DEEPSEEK_V3.tensors.items() if ".mlp." in name},
        ".mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
        ".mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    },
    layers_vary=True,
    block={"normalize_experts": True, "net": experts_in_turn},
)
