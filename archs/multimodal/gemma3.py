"""Gemma 3: SigLIP, whose patches are averaged before one matrix brings them to the text model's width."""

import math

from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Config, TensorMap
from ..transforms import add_one
from ..wrapper import Files, Wrapper, square

USUAL = 4  # patches a side averaged in published models


def _averaged(config: Config) -> int | None:
    """Return the patches a side merged into one embedding, if not the default."""
    tokens = math.isqrt(int(config["preprocessor"].get("image_seq_length") or 256))
    factor = int(config["vision"]["image_size"]) // int(config["vision"]["patch_size"]) // max(tokens, 1)
    return factor if factor not in (0, USUAL) else None


def _tokens(files: Files) -> int:
    """Return embeddings of an image."""
    patches = int(files.keys["vision.image_size"]) // int(files.keys["vision.patch_size"])
    return (patches // max(1, int(files.keys.get("vision.projector.scale_factor", USUAL)))) ** 2


GEMMA3 = Encoder(
    hf_classes=("Gemma3ForConditionalGeneration",),
    metadata={
        **VISION,
        "projector_type": always("gemma3"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "use_gelu": always(True),
        "vision.projector.scale_factor": _averaged,
    },
    tensors={
        **at("vision_tower.", "", CLIP_VISION),
        "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
        "multi_modal_projector.mm_soft_emb_norm": TensorMap("mm.soft_emb_norm", add_one),
    },
    fixed={"mm.input_projection.weight": "F16", "v.patch_embd.weight": "F32"},
    ignored={"vision_tower.head.*": "a pooling head of SigLIP that images in texts do not use"},
    spellings={"vision_tower.vision_model.": "vision_tower.", "multimodal_projector.": "multi_modal_projector."},
    wrappers=(
        Wrapper(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            texts=("gemma3",),
            text_names={"": "language_model."},
            encoder_names={"vision_tower.": "vision_tower.vision_model."},
            biased=("v.patch_embd", "v.post_ln"),
            config={
                "vision.model_type": "siglip_vision_model",
                "vision.vision_use_head": False,
                "mm_tokens_per_image": _tokens,
            },
            tokens={
                "image_token_index": ("<image_soft_token>",),
                "boi_token_index": ("<start_of_image>",),
                "eoi_token_index": ("<end_of_image>",),
            },
            processor="Gemma3Processor",
            image_processor="Gemma3ImageProcessor",
            preprocessor={"image_seq_length": _tokens, "size": square()},
            positions=0,
            tokenizer={
                "image_token": "<image_soft_token>",
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
            },
        ),
    ),
)
