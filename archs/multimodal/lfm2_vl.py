"""LFM2-VL: SigLIP 2 on patches that come as rows of pixels, patches of a square concatenated, a net of two matrices."""

from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Config, TensorMap
from ..transforms import patches_of_pixels
from ..wrapper import Wrapper, has, key, rows


def _layers(config: Config) -> int:
    """Return the layers in use: up to the one whose output is taken."""
    feature = config.get("vision_feature_layer")
    return int(config["vision"]["num_hidden_layers"]) + (-1 if feature is None else int(feature)) + 1


LFM2_VL = Encoder(
    hf_classes=("Lfm2VlForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": always(256),  # of any size; programs want one
        "vision.block_count": _layers,
        "projector_type": always("lfm2"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": maybe("downsample_factor", 2),
        "use_gelu": always(True),
    },
    defaults={"vision": {"patch_size": 16}},
    tensors={
        **at("vision_tower.", "", CLIP_VISION),
        "vision_tower.embeddings.patch_embedding.weight": TensorMap("v.patch_embd.weight", patches_of_pixels),
        "multi_modal_projector.layer_norm": "mm.input_norm",
        "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
    },
    spellings={"vision_tower.vision_model.": "vision_tower."},
    refused={"vision_feature_layer": lambda layer: isinstance(layer, list)},
    ignored={"vision_tower.head.*": "a pooling head of SigLIP that images in texts do not use"},
    wrappers=(
        Wrapper(
            "Lfm2VlForConditionalGeneration",
            "lfm2_vl",
            texts=("lfm2", "lfm2moe"),
            text_names={"model.": "model.language_model."},
            optional=("mm.input_norm",),
            encoder_names={
                "vision_tower.": "model.vision_tower.vision_model.",
                "multi_modal_projector.": "model.multi_modal_projector.",
            },
            biased=("v.patch_embd", "v.post_ln"),
            config={
                "vision.model_type": "siglip2_vision_model",
                "vision.num_hidden_layers": key("vision.block_count"),
                "vision.num_patches": rows("v.position_embd.weight"),
                "vision.vision_use_head": False,
                "vision_feature_layer": -1,
                "projector_hidden_act": "gelu",
                "projector_hidden_size": rows("mm.1.weight"),
                "projector_bias": has("mm.1.bias"),
                "projector_use_layernorm": has("mm.input_norm.weight"),
            },
            tokens={"image_token_id": ("<image>",)},
            processor="Lfm2VlProcessor",
            image_processor="Lfm2VlImageProcessorFast",
            preprocessor={
                "encoder_patch_size": key("vision.patch_size"),
                "downsample_factor": key("vision.projector.scale_factor"),
            },
        ),
    ),
)
