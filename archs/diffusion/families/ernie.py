"""ERNIE-Image. Sources: ComfyUI's `model_detection.py`, stable-diffusion.cpp's `ernie_image.hpp`, a list of names."""

from ..spec import DiffusionFamily

ERNIE_IMAGE = DiffusionFamily(
    name="ernie_image",
    title="ERNIE-Image",
    tag="wan",  # borrowed, as in the published files that ComfyUI-GGUF loads
    signatures=(
        (
            "adaLN_modulation.1.weight",
            "x_embedder.proj.weight",
            "layers.0.mlp.linear_fc2.weight",
            "layers.0.adaLN_sa_ln.weight",
            "final_linear.weight",
        ),
    ),
    kept=("adaLN_modulation.", "x_embedder.", "text_proj.", "time_embedding.", "final_norm.", "final_linear."),
)
