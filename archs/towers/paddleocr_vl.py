"""PaddleOCR-VL: SigLIP on pictures of their own size, squares of patches put side by side, a net of two matrices."""

import math

from ..spec import Config
from ..tower import CLIP_VISION, VISION, Tower, always, at, maybe


def _image_size(config: Config) -> int | None:
    most = config["preprocessor"].get("max_pixels")
    return None if most is None else math.isqrt(most)


PADDLEOCR_VL = Tower(
    hf_classes=("PaddleOCRVisionModel", "PaddleOCRVLForConditionalGeneration"),
    metadata={
        **VISION,
        "vision.image_size": _image_size,
        "projector_type": always("paddleocr"),
        "vision.image_max_pixels": "preprocessor.max_pixels",
        "vision.image_min_pixels": "preprocessor.min_pixels",
        "use_gelu": always(True),
        "vision.attention.layer_norm_epsilon": maybe("vision.rms_norm_eps", 1e-6),
    },
    tensors={
        **at("visual.vision_model.", "", CLIP_VISION),
        "mlp_AR.pre_norm": "mm.input_norm", "mlp_AR.linear_1": "mm.1", "mlp_AR.linear_2": "mm.2",
    },
    ignored={
        "visual.vision_model.head.*": "a pooling head of SigLIP that pictures in texts do not use",
        "visual.vision_model.embeddings.packing_position_embedding.*": "positions that its code does not use",
    },
)
