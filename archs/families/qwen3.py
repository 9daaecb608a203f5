"""Qwen3: Qwen2's layers without biases, with a norm on each head of q and k, and heads of a width of their own.

Reference: transformers `models/qwen3/modeling_qwen3.py`.
"""

from archs.families.qwen2 import QWEN2
from archs.layouts import head_norms

QWEN3 = QWEN2.derive(
    name="qwen3",
    hf_classes=("Qwen3ForCausalLM", "Qwen3Model"),
    vocab=("bpe",),
    defaults={"head_dim": 128},
    tensors={
        **head_norms(),
    },
)
