"""Ideogram 4. Sources: ComfyUI's `model_detection.py`, stable-diffusion.cpp's `ideogram4.hpp`."""

from ..from_diffusers import ideogram as layouts
from ..spec import DiffusionFamily

IDEOGRAM_4 = DiffusionFamily(
    name="ideogram4",
    title="Ideogram 4",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        (
            "embed_image_indicator.weight",
            "input_proj.weight",
            "layers.0.attention.qkv.weight",
            "final_layer.linear.weight",
        ),
    ),
    kept=("adaln_modulation.", "adaln_proj.", "input_proj.", "embed_image_indicator.", "t_embedding.", "final_layer."),
    from_diffusers=layouts.IDEOGRAM_4,
    diffusers_signatures=layouts.IDEOGRAM_4.signatures,
)
