"""HiDream-I1 and -E1, and HiDream-O1, a Qwen3-VL that draws pixels.

Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `ldm/hidream` and `ldm/hidream_o1`, stable-diffusion.cpp's
`hidream_o1.hpp`.
"""

from ..spec import DiffusionFamily

HIDREAM = DiffusionFamily(
    name="hidream",
    title="HiDream-I1",
    tag="hidream",
    signatures=(
        (
            "caption_projection.0.linear.weight",
            "double_stream_blocks.0.block.ff_i.shared_experts.w3.weight",
            "single_stream_blocks.0.block.attn1.to_q.weight",
            "x_embedder.proj.weight",
            "final_layer.linear.weight",
        ),
    ),
    kept=("p_embedder.", "t_embedder.", "x_embedder.", "final_layer.", "caption_projection."),
    float32=(".ff_i.gate.weight", "img_emb.emb_pos"),
    refused={"sdcpp": "has no code for this model"},
)
HIDREAM_O1 = DiffusionFamily(
    name="hidream_o1",
    title="HiDream-O1",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        (
            "t_embedder1.mlp.0.weight",
            "x_embedder.proj1.weight",
            "language_model.layers.0.self_attn.q_proj.weight",
            "final_layer2.linear.weight",
        ),
    ),
    kept=("t_embedder1.", "x_embedder.", "final_layer2.", "embed_tokens.", "visual.patch_embed.", "visual.pos_embed."),
    refused={"sdcpp": "looks for the names with the prefix 'model.'"},
)
