"""PixArt-alpha and -Sigma, with their own names. Sources: ComfyUI's `model_detection.py` and `ldm/pixart`."""

from ..spec import DiffusionFamily

PIXART = DiffusionFamily(
    name="pixart",
    title="PixArt",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        (
            "t_block.1.weight",
            "x_embedder.proj.weight",
            "y_embedder.y_proj.fc1.weight",
            "blocks.0.cross_attn.kv_linear.weight",
            "final_layer.linear.weight",
        ),
    ),
    kept=(
        "x_embedder.",
        "t_embedder.",
        "t_block.",
        "y_embedder.",
        "csize_embedder.",
        "ar_embedder.",
        "pos_embed",
        "final_layer.",
    ),
    float32=("scale_shift_table",),
    refused={"sdcpp": "reads only the names of diffusers' layout"},
)
