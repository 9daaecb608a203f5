"""Kandinsky 5 (image and video), and Kandinsky 6, which has sound.

Sources: ComfyUI's `ldm/kandinsky5` and `ldm/kandinsky6`. Kandinsky 5 has the same names in diffusers; of Kandinsky 6,
ComfyUI reads both layouts.
"""

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
KANDINSKY_6 = DiffusionFamily(
    name="kandinsky6",
    title="Kandinsky 6",
    tag="wan",  # borrowed
    signatures=tuple(
        (
            "audio_embeddings.in_layer.weight",
            "visual_embeddings.in_layer.weight",
            "video_text_embeddings.in_layer.weight",
            f"{block}.self_attention.to_query.weight",
            "out_layer.out_layer.weight",
        )
        for block in ("visual_blocks.0.videoT", "visual_transformer_blocks.0.video_dec_block")
    ),
    kept=(
        "time_embeddings.",
        "text_embeddings.",
        "visual_embeddings.",
        "audio_embeddings.",
        "visual_token_type_embeddings.",
        "out_layer.out_layer.",
        "out_layer.modulation.",
        "audio_outLayer.",
    ),
    refused={"sdcpp": "has no code for this model"},
)
