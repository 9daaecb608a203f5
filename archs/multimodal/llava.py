"""Llava 1.5 with CLIP: patches after a class token, the output of a layer before the last one, a net of two matrices.

llama.cpp's converter has no such class any more; keys are those that its runtime reads of such files.
"""

from collections.abc import Iterator

import numpy as np

from quants import Tensor, from_array

from ..config import other_than
from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Config, Tensors
from ..wrapper import Files, Wrapper, edge, has, rows, square

UNREAD = "unread."  # prefix of tensors after the layer whose output is taken


def _layers(config: Config) -> int:
    """Return how many layers are used."""
    count, feature = int(config["vision"]["num_hidden_layers"]), config.get("vision_feature_layer")
    feature = -2 if feature is None else feature
    return feature if feature >= 0 else count + feature + 1


def _without_unread(config: Config, tensors: Tensors) -> Tensors:
    layers, beginning = _layers(config), "vision_tower.encoder.layers."

    def placed(name: str) -> str:
        number = name.removeprefix(beginning).partition(".")[0] if name.startswith(beginning) else ""
        return f"{UNREAD}{name}" if number.isdecimal() and int(number) >= layers else name

    return {placed(name): tensor for name, tensor in tensors.items()}


def _kept(files: Files) -> int:
    return int(files.keys["vision.block_count"])


def _last_norm(files: Files) -> Iterator[Tensor]:
    """Yield the norm after the last layer, which the class has and whose output nothing reads."""
    width = int(files.keys["vision.embedding_length"])
    for suffix, value in (("weight", 1), ("bias", 0)):
        yield from_array(f"vision_tower.post_layernorm.{suffix}", np.full(width, value, np.float32))


LLAVA = Encoder(
    hf_classes=("LlavaForConditionalGeneration",),
    model_types=("clip_vision_model",),
    metadata={
        **VISION,
        "vision.block_count": _layers,
        "projector_type": always("mlp"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-5),
        "vision.feature_layer": lambda config: [_layers(config)],
        "use_gelu": lambda config: config["vision"].get("hidden_act") == "gelu",
    },
    defaults={
        "vision": {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 224,
            "patch_size": 32,
        }
    },
    tensors={
        **at("vision_tower.", "", CLIP_VISION),
        "vision_tower.embeddings.class_embedding": "v.class_embd",
        "vision_tower.pre_layrnorm": "v.pre_ln",
        "multi_modal_projector.linear_1": "mm.0",
        "multi_modal_projector.linear_2": "mm.2",
    },
    ignored={
        f"{UNREAD}*": "comes after the layer whose output is taken",
        "vision_tower.post_layernorm.*": "comes after the layer whose output is taken",
    },
    spellings={"vision_tower.vision_model.": "vision_tower."},
    prepare=_without_unread,
    refused={
        "vision_feature_layer": lambda layer: isinstance(layer, list),
        "vision_feature_select_strategy": other_than("default"),
        "vision.hidden_act": other_than("quick_gelu", "gelu"),
    },
    wrappers=(
        Wrapper(
            "LlavaForConditionalGeneration",
            "llava",
            text_names={"": "language_model."},
            encoder_names={"vision_tower.": "vision_tower.vision_model."},
            positions=1,
            made=_last_norm,
            optional=("v.post_ln",),
            biased=("v.pre_ln",),
            config={
                "vision.model_type": "clip_vision_model",
                "vision.num_hidden_layers": _kept,
                "vision.hidden_act": lambda files: "gelu" if files.keys.get("use_gelu") else "quick_gelu",
                "vision.projection_dim": rows("v.class_embd"),
                "vision_feature_layer": -1,
                "vision_feature_select_strategy": "default",
                "projector_hidden_act": "gelu",
                "multimodal_projector_bias": has("mm.0.bias"),
            },
            tokens={"image_token_index": ("<image>",)},
            processor="LlavaProcessor",
            image_processor="CLIPImageProcessor",
            preprocessor={"size": edge("shortest_edge"), "crop_size": square()},
        ),
    ),
)
