"""Qwen2-VL and Qwen2.5-VL (text): Qwen2's layers; of pictures' positions, time, height and width rotate pairs apart.

Reference: transformers `models/qwen2_vl/modeling_qwen2_vl.py`, `models/qwen2_5_vl/`. In a text the three are the same.
"""

from archs.families.qwen2 import QWEN2
from archs.spec import Config


def sections(config: Config) -> list[int] | None:
    """How many pairs each part of a position rotates, as four numbers."""
    given = config.get("mrope_section")
    return [*given, 0, 0, 0, 0][:4] if given else None


QWEN2_VL = QWEN2.derive(
    name="qwen2vl",
    hf_classes=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen2VLModel"),
    vocab=("sentencepiece", "bpe"),
    metadata={"rope.dimension_sections": sections},
    defaults={
        "hidden_size": 8192, "intermediate_size": 29_568, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "max_window_layers": 80,
        "vocab_size": 152_064,
    },
)  # fmt: skip
