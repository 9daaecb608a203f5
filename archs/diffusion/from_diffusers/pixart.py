"""PixArt-alpha and -Sigma."""

from .rules import DiffusersLayout, modules, parameters

BLOCK = "blocks.{i}.", "transformer_blocks.{i}."
EMBEDDERS = {  # published → in diffusers
    "t_embedder": "adaln_single.emb.timestep_embedder",
    "csize_embedder": "adaln_single.emb.resolution_embedder",
    "ar_embedder": "adaln_single.emb.aspect_ratio_embedder",
}
PIXART = DiffusersLayout(
    rules=(
        *modules(
            {
                "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
                "attn.proj": "attn1.to_out.0",
                "cross_attn.q_linear": "attn2.to_q",
                "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
                "cross_attn.proj": "attn2.to_out.0",
                "mlp.fc1": "ff.net.0.proj",
                "mlp.fc2": "ff.net.2",
            },
            *BLOCK,
        ),
        *parameters({"scale_shift_table": "scale_shift_table"}, *BLOCK),
        *modules({f"{target}.mlp.0": f"{source}.linear_1" for target, source in EMBEDDERS.items()}),
        *modules({f"{target}.mlp.2": f"{source}.linear_2" for target, source in EMBEDDERS.items()}),
        *modules(
            {
                "x_embedder.proj": "pos_embed.proj",
                "y_embedder.y_proj.fc1": "caption_projection.linear_1",
                "y_embedder.y_proj.fc2": "caption_projection.linear_2",
                "t_block.1": "adaln_single.linear",
                "final_layer.linear": "proj_out",
            }
        ),
        *parameters(
            {
                "y_embedder.y_embedding": "caption_projection.y_embedding",
                "final_layer.scale_shift_table": "scale_shift_table",
            }
        ),
    ),
    signatures=(
        (
            "pos_embed.proj.weight",
            "adaln_single.linear.weight",
            "caption_projection.linear_1.weight",
            "transformer_blocks.0.attn2.to_k.weight",
        ),
    ),
)
