"""Kandinsky 5 (image and video). Sources: ComfyUI's `ldm/kandinsky5`; diffusers has the same names."""

from ..spec import DiffusionFamily

KANDINSKY_5 = DiffusionFamily(
    name="kandinsky5",
    title="Kandinsky 5",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        (
            "visual_transformer_blocks.0.cross_attention.key_norm.weight",
            "text_transformer_blocks.0.self_attention.to_query.weight",
            "visual_embeddings.in_layer.weight",
            "out_layer.out_layer.weight",
        ),
    ),
    kept=(
        "time_embeddings.",
        "text_embeddings.",
        "visual_embeddings.",
        "out_layer.out_layer.",
        "out_layer.modulation.",
    ),
    refused={"sdcpp": "has no code for this model"},
)
