"""Mochi 1 (Genmo), a video model. Sources: ComfyUI's `ldm/genmo` and `model_detection.py`."""

from ..spec import DiffusionFamily

MOCHI = DiffusionFamily(
    name="mochi",
    title="Mochi",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        ("t5_yproj.weight", "blocks.0.attn.qkv_x.weight", "x_embedder.proj.weight", "final_layer.linear.weight"),
    ),
    kept=("x_embedder.", "t_embedder.", "t5_y_embedder.", "t5_yproj.", "final_layer."),
    float32=("pos_frequencies",),
    refused={"sdcpp": "has no code for this model"},
)
