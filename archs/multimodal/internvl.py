"""InternVL: a ViT with scales after attention and nets, patches of a square concatenated, a net of two matrices. In its
authors' spelling and transformers' own.
"""

from collections.abc import Callable

from ..encoder import VISION, Encoder, activation, always, at
from ..spec import Computed, Target, TensorMap
from ..transforms import part
from ..wrapper import Files, Wrapper, has, inverse, key, square

LAYER: dict[str, Target] = {
    "norm1": "ln1",
    "norm2": "ln2",
    "ls1": "ls1.weight",
    "ls2": "ls2.weight",
    "attn.qkv": tuple(TensorMap(f"attn_{name}", part(i, 3)) for i, name in enumerate("qkv")),
    "attn.proj": "attn_out",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
TRANSFORMERS_LAYER: dict[str, Target] = {
    "layernorm_before": "ln1",
    "layernorm_after": "ln2",
    "lambda_1": "ls1.weight",
    "lambda_2": "ls2.weight",
    "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v",
    "attention.projection_layer": "attn_out",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def _tiles(key: str) -> Computed:
    return lambda config: config.get(key) or None


def _sides(name: str) -> Callable[[Files], list[int]]:
    return lambda files: [int(files.keys[name])] * 2


def _tokens(files: Files) -> int:
    """Return embeddings of a tile."""
    patches = int(files.keys["vision.image_size"]) // int(files.keys["vision.patch_size"])
    return (patches // int(files.keys["vision.projector.scale_factor"])) ** 2


WRAPPER = Wrapper(
    "InternVLForConditionalGeneration",
    "internvl",
    text_names={"": "language_model."},
    unused=("vision_model.*", "mlp1.*"),
    positions=1,
    biased=("v.patch_embd", "mm.model.mlp.0", "mm.model.mlp.1", "mm.model.mlp.3"),
    config={
        "vision.image_size": _sides("vision.image_size"),
        "vision.patch_size": _sides("vision.patch_size"),
        "vision.use_qk_norm": has("v.blk.0.attn_q_norm.weight"),
        "vision.attention_bias": has("v.blk.0.attn_q.bias"),
        "vision.norm_type": lambda files: "layer_norm" if "v.blk.0.ln1.bias" in files.tensors else "rms_norm",
        "downsample_ratio": inverse("vision.projector.scale_factor"),
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "image_seq_length": _tokens,
        "min_dynamic_patch": key("vision.preproc_min_tiles"),
        "max_dynamic_patch": key("vision.preproc_max_tiles"),
    },
    tokens={"image_token_id": ("<IMG_CONTEXT>",)},
    processor="InternVLProcessor",
    image_processor="GotOcr2ImageProcessor",
    preprocessor={
        "size": square(),
        "crop_to_patches": True,
        "min_patches": key("vision.preproc_min_tiles"),
        "max_patches": key("vision.preproc_max_tiles"),
    },
    tokenizer={
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
)
INTERNVL = Encoder(
    hf_classes=("InternVisionModel", "InternVLChatModel", "InternVLForConditionalGeneration"),
    metadata={
        **VISION,
        "projector_type": always("internvl"),
        "vision.attention.layer_norm_epsilon": "vision.layer_norm_eps",
        **activation("vision.hidden_act", silu="use_silu", gelu="use_gelu"),
        "vision.projector.scale_factor": lambda config: int(1 / config["downsample_ratio"]),
        "vision.preproc_min_tiles": _tiles("min_dynamic_patch"),
        "vision.preproc_max_tiles": _tiles("max_dynamic_patch"),
    },
    tensors={
        **at("vision_model.encoder.layers.{i}.", "v.blk.{i}.", LAYER),
        "vision_model.embeddings.class_embedding": "v.class_embd",
        "vision_model.embeddings.patch_embedding": "v.patch_embd",
        "vision_model.embeddings.position_embedding": "v.position_embd.weight",
        "mlp1.{i}": "mm.model.mlp.{i}",
        **at("vision_tower.encoder.layer.{i}.", "v.blk.{i}.", TRANSFORMERS_LAYER),
        "vision_tower.embeddings.cls_token": "v.class_embd",
        "vision_tower.embeddings.patch_embeddings.projection": "v.patch_embd",
        "vision_tower.embeddings.position_embeddings": "v.position_embd.weight",
        "multi_modal_projector.layer_norm": "mm.model.mlp.0",
        "multi_modal_projector.linear_1": "mm.model.mlp.1",
        "multi_modal_projector.linear_2": "mm.model.mlp.3",
    },
    wrappers=(WRAPPER,),
)
