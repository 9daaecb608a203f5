"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v; rotates halves, as HF does.

Reference: transformers `models/qwen2/modeling_qwen2.py`.
"""

from archs.config import windows
from archs.families.llama import LLAMA
from archs.spec import Block

QWEN2 = LLAMA.but(
    name="qwen2",
    hf_classes=("Qwen2ForCausalLM", "Qwen2Model"),
    vocab=("bpe", "sentencepiece"),
    metadata={
        "vocab_size": None,
        "rope.dimension_count": None,
        **windows(lambda config, layer: layer >= config["max_window_layers"]),
    },
    defaults={
        "intermediate_size": 22_016,
        "num_key_value_heads": 32,
        "head_dim": None,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "vocab_size": 151_936,
    },
    tensors={
        "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    },
    block=Block(rope="halves"),
)
