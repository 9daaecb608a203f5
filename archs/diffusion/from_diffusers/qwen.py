"""Qwen-Image 2.1; Qwen-Image itself is published in diffusers' layout."""

from .rules import DiffusersLayout, modules, same

QWEN_IMAGE_21 = DiffusersLayout(
    rules=(
        *modules(
            {
                "img_mlp.gate_up": ("img_mlp.gate_layer", "img_mlp.proj"),
                **same("img_mlp.out", "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
                **same("attn.norm_q", "attn.norm_k"),
            },
            "transformer_blocks.{i}.",
            "transformer_blocks.{i}.",
        ),
        *modules(
            same(
                "time_text_embed.timestep_embedder.linear_1",
                "time_text_embed.timestep_embedder.linear_2",
                "txt_in.text_norm",
                "txt_in.in_layer",
                "txt_in.out_layer",
                "img_in",
                "modulation.1",
                "norm_out.linear",
                "proj_out",
            )
        ),
    ),
    signatures=(("txt_in.text_norm.weight", "transformer_blocks.0.img_mlp.gate_layer.weight"),),
)
