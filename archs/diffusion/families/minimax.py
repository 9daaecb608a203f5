"""MiniMax H3, a video model with sound. Sources: ComfyUI's `model_detection.py`, stable-diffusion.cpp's code."""

from ..from_diffusers import minimax as layouts
from ..spec import DiffusionFamily

MINIMAX_H3 = DiffusionFamily(
    name="minimax_h3",
    title="MiniMax H3",
    tag="wan",  # borrowed: published files with this tag load in ComfyUI-GGUF, those with "minimax_h3" do not
    signatures=(
        (
            "video_patch_proj.weight",
            "audio_patch_proj.weight",
            "condition_proj.weight",
            "blocks.0.attn.qkv_proj.weight",
            "final_layer.video_out.weight",
        ),
    ),
    kept=(
        "video_patch_proj.",
        "audio_patch_proj.",
        "condition_proj.",
        "time_embedder.",
        "token_refiner.",
        "final_layer.",
    ),
    float32=(
        "video_patch_proj.",
        "audio_patch_proj.",
        "final_layer.video_out.",
        "final_layer.audio_out.",
        "adaln_t_table",
        "rope.inv_freq",
    ),  # as published
    from_diffusers=layouts.MINIMAX_H3,
    diffusers_signatures=layouts.MINIMAX_H3.signatures,
)
