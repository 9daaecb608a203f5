"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v; rotates halves, as HF does.

Reference: transformers `models/qwen2/modeling_qwen2.py`.
"""

from archs.config import windowed_layers
from archs.families.llama import LLAMA
from archs.spec import Block, Config


def window_size(config: Config) -> int | None:
    return config.get("sliding_window") if any(window_pattern(config) or []) else None


def window_pattern(config: Config) -> list[bool] | None:
    """Which layers are windowed, where any is (the reference drops this)."""
    if not config.get("use_sliding_window"):
        return None
    return windowed_layers(config, lambda layer: layer >= config["max_window_layers"])


QWEN2 = LLAMA.but(
    name="qwen2",
    hf_classes=("Qwen2ForCausalLM", "Qwen2Model"),
    vocab=("bpe", "sentencepiece"),
    metadata={
        "vocab_size": None,
        "rope.dimension_count": None,
        "attention.sliding_window": window_size,
        "attention.sliding_window_pattern": window_pattern,
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
