"""Stable Diffusion 3 and 3.5 (medium, large, turbo).

Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `model_detection.py`, stable-diffusion.cpp's `mmdit.hpp`.
"""

from ..from_diffusers import sd3 as layouts
from ..spec import DiffusionFamily

SD_3 = DiffusionFamily(
    name="sd3",
    title="Stable Diffusion 3",
    tag="sd3",
    signatures=(
        (
            "joint_blocks.0.x_block.attn.qkv.weight",
            "joint_blocks.0.context_block.attn.qkv.weight",
            "x_embedder.proj.weight",
            "context_embedder.weight",
            "final_layer.linear.weight",
        ),
    ),
    kept=("final_layer.", "context_embedder.", "t_embedder.", "y_embedder.", "x_embedder.", "pos_embed"),
    from_diffusers=layouts.SD3,
    diffusers_signatures=layouts.SD3.signatures,
)
