"""Ling 3 VL: Qwen3-VL's encoder without deepstack, whose merger is a norm, and a net of two matrices after it."""

from ..encoder import VISION, Encoder, always, maybe
from .qwen_vl import QWEN3_VL

LING3_VL = Encoder(
    hf_classes=("BailingMoeV3VLForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": QWEN3_VL.metadata["vision.image_size"],
        "projector_type": always("ling3vl"),
        "use_gelu": always(True),
        "vision.spatial_merge_size": maybe("vision.spatial_merge_size"),
        "vision.attention.layer_norm_epsilon": QWEN3_VL.metadata["vision.attention.layer_norm_epsilon"],
    },
    tensors={
        **{name: target for name, target in QWEN3_VL.tensors.items() if "merger" not in name},
        "visual.merger.norm": "mm.input_norm",
        "linear_proj.{i}": "mm.{i}",
    },
    refused={"vision.disable_merger_proj": lambda value: value is not True},
)
