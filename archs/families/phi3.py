"""Phi-3 and Phi-4: Llama's layers with q/k/v fused and gate and up fused; longrope in the long-context models.

Reference: transformers `models/phi3/modeling_phi3.py`. A window of 0 means none, as llama.cpp writes it.
"""

from archs.families.qwen2 import HALVES
from archs.rope import longrope_attention, longrope_factors, rotated_width, type_without_tensors

PHI3 = HALVES.derive(
    name="phi3",
    hf_classes=("Phi3ForCausalLM", "Phi3Model"),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "rope.dimension_count": rotated_width,
        "rope.scaling.type": type_without_tensors,
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.attn_factor": longrope_attention,
        "attention.sliding_window": lambda config: config.get("sliding_window") or 0,
    },
    defaults={
        "hidden_size": 3072, "intermediate_size": 8192,
        "num_key_value_heads": lambda config: config["num_attention_heads"], "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32_064,
    },
    tensors={
        "layers.{i}.self_attn.q_proj": None,
        "layers.{i}.self_attn.k_proj": None,
        "layers.{i}.self_attn.v_proj": None,
        "layers.{i}.self_attn.qkv_proj": "blk.{i}.attn_qkv",
        "layers.{i}.mlp.gate_proj": None,
        "layers.{i}.mlp.up_proj": None,
        "layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
    },
    generated=(longrope_factors,),
)  # fmt: skip
