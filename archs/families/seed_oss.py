"""Seed-OSS: Qwen2's layers with heads of a width of their own; GGUF names the second norm otherwise.

Reference: transformers `models/seed_oss/modeling_seed_oss.py`.
"""

from archs.families.qwen2 import HALVES
from archs.spec import in_layers

SEED_OSS = HALVES.derive(
    name="seed_oss",
    hf_classes=("SeedOssForCausalLM", "SeedOssModel"),
    defaults={
        "model_type": "seed_oss", "intermediate_size": 27_648, "num_hidden_layers": 64, "num_attention_heads": 80,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524_288, "vocab_size": 155_136,
    },
    tensors=in_layers({"post_attention_layernorm": "post_attention_norm"}),
    flags_from_tensors={"attention_out_bias": "blk.*.attn_output.bias"},
    block={"ffn_norm": "post_attention_norm"},
)  # fmt: skip
