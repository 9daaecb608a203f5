"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v, and windows that a switch turns on; rotates halves, as
HF does.

Reference: transformers `models/qwen2/modeling_qwen2.py`.
"""

from archs.config import windows
from archs.families.llama import LLAMA

HALVES = LLAMA.derive(  # what other families begin with: no class means this alone
    name="qwen2",
    hf_classes=(),
    vocab=("bpe", "sentencepiece"),
    metadata={"vocab_size": None, "rope.dimension_count": None},
    defaults={
        "intermediate_size": 22_016, "num_key_value_heads": 32, "head_dim": None, "max_position_embeddings": 32_768,
        "vocab_size": 151_936,
    },
    tensors={
        "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    },
    block={"rope": "halves", "normalize_experts": False},
)  # fmt: skip

QWEN2 = HALVES.derive(
    hf_classes=("Qwen2ForCausalLM", "Qwen2Model"),
    metadata=windows(lambda config, layer: layer >= config["max_window_layers"]),
    defaults={"sliding_window": 4096, "max_window_layers": 28},
)
