"""Qwen2-VL and Qwen2.5-VL (text): Qwen2's layers; of pictures' positions, time, height and width rotate pairs apart.

Reference: transformers `models/qwen2_vl/modeling_qwen2_vl.py`, `models/qwen2_5_vl/`. In a text the three are the same.
"""

from archs.families.qwen2 import QWEN2
from archs.spec import Config


def sections(config: Config) -> list[int] | None:
    """How many pairs each part of a position rotates, as four numbers."""
    given = config.get("mrope_section")
    return [*given, 0, 0, 0, 0][:4] if given else None


QWEN2_VL = QWEN2.but(
    name="qwen2vl",
    hf_classes=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen2VLModel"),
    vocab=("sentencepiece", "bpe"),
    metadata={"rope.dimension_sections": sections},
)
