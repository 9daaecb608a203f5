"""Mochi 1."""

from .rules import DiffusersLayout, modules, parameters, same, swapped

MOCHI = DiffusersLayout(
    rules=(
        *modules({"mod_y": "norm1_context.linear_1"}, "blocks.{last}.", "transformer_blocks.{last}."),
        *modules(
            {
                "mod_x": "norm1.linear",
                "mod_y": "norm1_context.linear",
                "attn.qkv_x": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
                "attn.qkv_y": ("attn1.add_q_proj", "attn1.add_k_proj", "attn1.add_v_proj"),
                "attn.q_norm_x": "attn1.norm_q",
                "attn.k_norm_x": "attn1.norm_k",
                "attn.q_norm_y": "attn1.norm_added_q",
                "attn.k_norm_y": "attn1.norm_added_k",
                "attn.proj_x": "attn1.to_out.0",
                "attn.proj_y": "attn1.to_add_out",
                "mlp_x.w1": swapped("ff.net.0.proj"),  # gate before value; diffusers has the value first
                "mlp_x.w2": "ff.net.2",
                "mlp_y.w1": swapped("ff_context.net.0.proj"),
                "mlp_y.w2": "ff_context.net.2",
            },
            "blocks.{i}.",
            "transformer_blocks.{i}.",
        ),
        *modules(
            {
                "x_embedder.proj": "patch_embed.proj",
                "t_embedder.mlp.0": "time_embed.timestep_embedder.linear_1",
                "t_embedder.mlp.2": "time_embed.timestep_embedder.linear_2",
                "t5_y_embedder.to_kv": "time_embed.pooler.to_kv",
                "t5_y_embedder.to_q": "time_embed.pooler.to_q",
                "t5_y_embedder.to_out": "time_embed.pooler.to_out",
                "t5_yproj": "time_embed.caption_proj",
                "final_layer.mod": swapped("norm_out.linear"),
                "final_layer.linear": "proj_out",
            }
        ),
        *parameters(same("pos_frequencies")),
    ),
    signatures=(("pos_frequencies", "time_embed.pooler.to_kv.weight", "transformer_blocks.0.attn1.to_q.weight"),),
)
