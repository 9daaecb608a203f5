"""PaddleOCR-VL: SigLIP on images of native size, patches of a square concatenated, a net of two matrices."""

import math

from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Config
from ..wrapper import Files, Wrapper, key, positions_side


def _image_size(config: Config) -> int | None:
    max_pixels = config["preprocessor"].get("max_pixels")
    return None if max_pixels is None else math.isqrt(max_pixels)


def _merging(files: Files) -> int:
    """Return the patches a side merged into one embedding, by their concatenated width."""
    return math.isqrt(files.shape("mm.1.weight")[1] // int(files.keys["vision.embedding_length"]))


PADDLEOCR_VL = Encoder(
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
        "mlp_AR.pre_norm": "mm.input_norm",
        "mlp_AR.linear_1": "mm.1",
        "mlp_AR.linear_2": "mm.2",
    },
    ignored={
        "visual.vision_model.head.*": "a pooling head of SigLIP that images in texts do not use",
        "visual.vision_model.embeddings.packing_position_embedding.*": "positions that its code does not use",
    },
    wrappers=(
        Wrapper(
            "PaddleOCRVLForConditionalGeneration",
            "paddleocr_vl",
            texts=("paddleocr",),
            biased=("v.patch_embd", "v.post_ln", "mm.1", "mm.2", "mm.input_norm"),
            config={
                "vision.image_size": positions_side,
                "vision.layer_norm_eps": key("vision.attention.layer_norm_epsilon"),
                "vision.spatial_merge_size": _merging,
                "vision.temporal_patch_size": 1,
            },
            tokens={
                "image_token_id": ("<|IMAGE_PLACEHOLDER|>",),
                "video_token_id": ("<|video_pad|>",),
                "vision_start_token_id": ("<|IMAGE_START|>",),
                "vision_end_token_id": ("<|IMAGE_END|>",),
            },
            processor="PaddleOCRVLProcessor",
            image_processor="PaddleOCRVLImageProcessor",
            preprocessor={"patch_size": key("vision.patch_size"), "temporal_patch_size": 1, "merge_size": _merging},
            tokenizer={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        ),
    ),
)
