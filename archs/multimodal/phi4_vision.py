"""Phi-4 Vision: SigLIP 2 on patches that come as rows of pixels, the output of the layer before the last one, a net of
two matrices.
"""

import math

from quants.errors import ModelError

from ..config import required
from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Computed, Config, Target, TensorMap, Tensors
from ..transforms import patches_of_pixels

UNREAD = "comes after the layer whose output is taken"
LAYER = "vision_tower.encoder.layers."


def _layers(config: Config) -> int:
    return int(config["vision"]["num_hidden_layers"]) - 1


def _without_last(config: Config, tensors: Tensors) -> Tensors:
    last = f"{LAYER}{_layers(config)}."
    return {f"unread.{name}" if name.startswith(last) else name: tensor for name, tensor in tensors.items()}


def _image_size(config: Config) -> int:
    """Return the side of an image with as many positions."""
    shape = config["shapes"].get("vision_tower.embeddings.position_embedding.weight", (0,))
    side = math.isqrt(shape[0])
    if not side or side * side != shape[0]:
        raise ModelError(f"the checkpoint has positions for {shape[0]} patches, which are no square")
    return side * _patch(config)


def _patch(config: Config) -> int:
    size = required(config, "preprocessor.patch_size")
    if not isinstance(size, int):
        raise ModelError(f"the preprocessor's patch_size is {size}; a whole number was expected")
    return size


def _pixels(key: str) -> Computed:
    def pixels(config: Config) -> int:
        return int(required(config, f"preprocessor.{key}|{key}")) * _patch(config) ** 2

    return pixels


TENSORS: dict[str, Target] = {
    **at("vision_tower.", "", CLIP_VISION),
    "vision_tower.embeddings.patch_embedding.weight": TensorMap("v.patch_embd.weight", patches_of_pixels),
    "mm_projector.{i}": "mm.{i}",
}
PHI4_VISION = Encoder(
    hf_classes=("Phi4ForCausalLMV",),
    metadata={
        **VISION,
        "vision.image_size": _image_size,
        "vision.patch_size": _patch,
        "vision.block_count": _layers,
        "projector_type": always("phi4"),
        "vision.image_min_pixels": _pixels("min_num_patches"),
        "vision.image_max_pixels": _pixels("max_num_patches"),
        "use_gelu": always(True),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
    },
    tensors=TENSORS,
    ignored={
        "unread.*": UNREAD,
        "vision_tower.post_layernorm.*": UNREAD,
        "vision_tower.head.*": "a pooling head of SigLIP that images in texts do not use",
    },
    spellings={
        "vision_tower.vision_tower.vision_model.": "vision_tower.",
        "vision_tower.vision_model.": "vision_tower.",
    },
    prepare=_without_last,
)
