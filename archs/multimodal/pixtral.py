"""Pixtral and Mistral 3: layers like Llama's with rotation in two dimensions, then a net of two matrices; Mistral 3
first merges squares of patches. The text model's embedding of [IMG_BREAK], which ends a row of patches, is included.
"""

from dataclasses import replace

import numpy as np

from ..encoder import VISION, Encoder, activation, always, at, maybe
from ..spec import Config, Index, Target, TensorMap
from ..transforms import chain, flat_row, interleave_rope, share
from ..wrapper import Files, Wrapper, edge, has, head_width, key

ROTATED = interleave_rope("vision.num_attention_heads")
LAYER: dict[str, Target] = {
    "attention_norm": "ln1",
    "ffn_norm": "ln2",
    "attention.q_proj": TensorMap("attn_q", ROTATED),
    "attention.k_proj": TensorMap("attn_k", ROTATED),
    "attention.v_proj": "attn_v",
    "attention.o_proj": "attn_out",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
}


def _break_row(rows: int, config: Config) -> Index:
    return np.array([config["tokens"]["break"]])


def _merges(files: Files) -> bool:
    return "mm.patch_merger.weight" in files.tensors


def _unit(files: Files) -> dict[str, int]:
    return dict.fromkeys(("height", "width"), int(files.keys["vision.patch_size"]))


LLAVA = Wrapper(
    "LlavaForConditionalGeneration",
    "llava",
    fits=lambda files: not _merges(files),
    text_names={"": "language_model."},
    of_text=("v.token_embd.img_break",),
    optional=("mm.input_norm", "mm.patch_merger"),
    config={
        "vision.model_type": "pixtral",
        "vision.head_dim": head_width(),
        "vision.rope_theta": 10_000.0,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": has("mm.1.bias"),
    },
    tokens={"image_token_index": ("[IMG]",)},
    processor="PixtralProcessor",
    image_processor="PixtralImageProcessor",
    preprocessor={"size": edge("longest_edge"), "patch_size": _unit},
    tokenizer={"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
)
MISTRAL3 = replace(
    LLAVA,
    hf_class="Mistral3ForConditionalGeneration",
    model_type="mistral3",
    fits=_merges,
    optional=(),
    config={path: value for path, value in LLAVA.config.items() if "strategy" not in path},
    preprocessor={**LLAVA.preprocessor, "spatial_merge_size": key("vision.spatial_merge_size")},
)
PIXTRAL = Encoder(
    hf_classes=("LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"),
    model_types=("pixtral",),
    metadata={
        **VISION,
        "projector_type": always("pixtral"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-5),
        **activation("vision.hidden_act", silu="use_silu", gelu="use_gelu"),
        "vision.spatial_merge_size": maybe("spatial_merge_size"),
    },
    defaults={
        "vision": {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 1024,
            "patch_size": 16,
            "hidden_act": "gelu",
        }
    },
    tensors={
        **at("vision_tower.transformer.layers.{i}.", "v.blk.{i}.", LAYER),
        "vision_tower.patch_conv": "v.patch_embd",
        "vision_tower.ln_pre": "v.pre_ln",
        "multi_modal_projector.norm": "mm.input_norm",
        "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
        "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
        "language_model.embed_tokens.weight": TensorMap("v.token_embd.img_break", chain(share(_break_row), flat_row)),
    },
    spellings={"language_model.model.": "language_model."},
    tokens={"break": "[IMG_BREAK]"},
    wrappers=(LLAVA, MISTRAL3),
)
LIGHTON_OCR = Encoder(
    hf_classes=("LightOnOCRForConditionalGeneration",),
    metadata={**PIXTRAL.metadata, "projector_type": always("lightonocr")},
    defaults=PIXTRAL.defaults,
    tensors={name: target for name, target in PIXTRAL.tensors.items() if "embed_tokens" not in name},
    spellings={"vision_encoder.": "vision_tower.", "vision_projection.": "multi_modal_projector."},
    claimed=("vision_encoder.*", "vision_projection.*"),
    wrappers=(
        replace(
            MISTRAL3,
            hf_class="LightOnOCRForConditionalGeneration",
            model_type="lighton_ocr",
            text_names={"model.": "model.language_model."},
            of_text=(),
            fits=None,
            encoder_names={
                "vision_tower.": "model.vision_encoder.",
                "multi_modal_projector.": "model.vision_projection.",
            },
            config={path: value for path, value in MISTRAL3.config.items() if "feature_layer" not in path},
            tokens={"image_token_id": ("<|image_pad|>",)},
            processor="LightOnOcrProcessor",
            tokenizer={
                "image_token": "<|image_pad|>",
                "image_break_token": "<|vision_pad|>",
                "image_end_token": "<|vision_end|>",
            },
        ),
    ),
)
