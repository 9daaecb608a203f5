"""GLM-4V, GLM-OCR and GLM-5-Next: Qwen's patches and fused q/k/v with RMS norms, a convolution that merges squares of
patches, and a gated net after them.
"""

from collections.abc import Callable
from dataclasses import replace

from ..config import lookup
from ..encoder import FUSED_ATTENTION, GATED_NET, VISION, Encoder, always, at, maybe
from ..spec import Computed, Config, Target
from ..wrapper import Files, Wrapper, key, rows
from .qwen_vl import PATCHES, channels

LAYER: dict[str, Target] = {**FUSED_ATTENTION, "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm", **GATED_NET}


def _merging(files: Files) -> int:
    """Return patches a side that become one embedding."""
    return files.shape("mm.patch_merger.weight")[-1]


WRAPPER = Wrapper(
    "Glm4vForConditionalGeneration",
    "glm4v",
    texts=("glm4",),
    fits=lambda files: "v.blk.0.attn_q_norm.weight" not in files.tensors,
    text_names={"model.": "model.language_model."},
    encoder_names={"visual.": "model.visual."},
    biased=("v.patch_embd", "mm.patch_merger", "mm.post_norm"),
    config={
        "vision.in_channels": channels,
        "vision.spatial_merge_size": _merging,
        "vision.temporal_patch_size": 2,
        "vision.out_hidden_size": key("vision.projection_dim"),
        "vision.hidden_act": lambda files: "gelu" if files.keys.get("use_gelu") else "silu",
    },
    tokens={
        "image_token_id": ("<|image|>",),
        "video_token_id": ("<|video|>",),
        "image_start_token_id": ("<|begin_of_image|>",),
        "image_end_token_id": ("<|end_of_image|>",),
        "video_start_token_id": ("<|begin_of_video|>",),
        "video_end_token_id": ("<|end_of_video|>",),
    },
    processor="Glm4vProcessor",
    image_processor="Glm4vImageProcessor",
    preprocessor={"patch_size": key("vision.patch_size"), "temporal_patch_size": 2, "merge_size": _merging},
)
GLM4V = Encoder(
    hf_classes=("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration", "GlmOcrForConditionalGeneration"),
    metadata={
        **VISION,
        "projector_type": always("glm4v"),
        "use_gelu": lambda config: config["vision"].get("hidden_act") == "gelu" or None,
        "use_silu": lambda config: config["vision"].get("hidden_act", "silu") == "silu" or None,
        "vision.attention.layer_norm_epsilon": maybe("vision.rms_norm_eps", 1e-5),
    },
    defaults={"vision": {"image_size": 336, "patch_size": 14, "depth": 24, "num_heads": 12}},
    tensors={
        **PATCHES,
        **at("visual.blocks.{i}.", "v.blk.{i}.", LAYER),
        "visual.embeddings.position_embedding": "v.position_embd",
        "visual.post_conv_layernorm": "v.norm_embd",
        "visual.post_layernorm": "v.post_ln",
        "visual.downsample": "mm.patch_merger",
        "visual.merger.proj": "mm.model.fc",
        "visual.merger.post_projection_norm": "mm.post_norm",
        "visual.merger.gate_proj": "mm.gate",
        "visual.merger.up_proj": "mm.up",
        "visual.merger.down_proj": "mm.down",
    },
    wrappers=(
        WRAPPER,
        replace(WRAPPER, hf_class="Glm4vMoeForConditionalGeneration", model_type="glm4v_moe", texts=("glm4moe",)),
        replace(
            WRAPPER,
            hf_class="GlmOcrForConditionalGeneration",
            model_type="glm_ocr",
            fits=lambda files: not WRAPPER.fits or not WRAPPER.fits(files),
            optional=("v.position_embd", "v.norm_embd"),
        ),
    ),
)


def _pixels(key: str) -> Computed:
    """Return the pixels of this many tokens' squares of patches."""

    def pixels(config: Config) -> int | None:
        settings = config["preprocessor"]
        tokens, side = (
            lookup(settings, key),
            int(settings.get("patch_size") or 14) * int(settings.get("merge_size") or 2),
        )
        return None if tokens is None else int(tokens) * side**2

    return pixels


def _tokens(pixels: str) -> Callable[[Files], int | None]:
    """Return the inverse of `_pixels`."""

    def tokens(files: Files) -> int | None:
        side = int(files.keys["vision.patch_size"]) * _merging(files)
        return None if (count := files.keys.get(pixels)) is None else int(count) // side**2

    return tokens


def _padding(files: Files) -> int:
    """Return the padding token's id; the class's default id may exceed smaller vocabularies."""
    known = (files.text.get(f"tokenizer.ggml.{name}_token_id") for name in ("padding", "eos"))
    return next((int(number) for number in known if number is not None), 0)


GLM5_NEXT = Encoder(
    hf_classes=("Glm5NextForConditionalGeneration",),
    metadata={
        **GLM4V.metadata,
        "projector_type": always("glm5v"),
        "vision.spatial_merge_size": maybe("vision.spatial_merge_size", 2),
        "vision.swiglu_clamp": maybe("vision.swiglu_limit"),
        "vision.image_min_pixels": _pixels("min_image_tokens"),
        "vision.image_max_pixels": _pixels("max_image_tokens"),
    },
    defaults={
        "vision": {
            "image_size": 336,
            "patch_size": 14,
            "depth": 24,
            "num_heads": 16,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "swiglu_limit": 10.0,
        }
    },
    tensors=GLM4V.tensors,
    wrappers=(
        replace(
            WRAPPER,
            hf_class="Glm5NextForConditionalGeneration",
            model_type="glm5_next",
            texts=("glm5-next",),
            fits=None,
            optional=("v.position_embd", "v.norm_embd"),
            config={
                **WRAPPER.config,
                "vision.projection_intermediate_size": rows("mm.up.weight"),
                "text.pad_token_id": _padding,
            },
            processor="Glm5NextProcessor",
            image_processor="Glm5NextImageProcessor",
            preprocessor={
                **WRAPPER.preprocessor,
                "min_image_tokens": _tokens("vision.image_min_pixels"),
                "max_image_tokens": _tokens("vision.image_max_pixels"),
            },
        ),
    ),
)
