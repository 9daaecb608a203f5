"""Cosmos Predict 1, 2 and 2.5."""

from .rules import DiffusersLayout, modules, parameters, same

POSITIONS = "learnable_pos_embed.pos_emb_t"  # of Cosmos 1 alone
BLOCK = "blocks.{i}.", "transformer_blocks.{i}."
COSMOS = DiffusersLayout(
    rules=(
        *modules(
            {
                "adaln_modulation_self_attn.1": "norm1.linear_1",
                "adaln_modulation_self_attn.2": "norm1.linear_2",
                "adaln_modulation_cross_attn.1": "norm2.linear_1",
                "adaln_modulation_cross_attn.2": "norm2.linear_2",
                "adaln_modulation_mlp.1": "norm3.linear_1",
                "adaln_modulation_mlp.2": "norm3.linear_2",
                "mlp.layer1": "ff.net.0.proj",
                "mlp.layer2": "ff.net.2",
            },
            *BLOCK,
        ),
        *modules(
            {
                f"cross_attn.{name}": f"attn2.{name}"  # of images, in Predict 2.5
                for name in ("q_img", "k_img", "v_img", "q_img_norm", "k_img_norm")
            },
            *BLOCK,
        ),
        *modules(same("crossattn_proj.0", "img_context_proj.0")),
        *(
            rule
            for target, source in (("self_attn", "attn1"), ("cross_attn", "attn2"))
            for rule in modules(
                {
                    f"{target}.q_proj": f"{source}.to_q",
                    f"{target}.k_proj": f"{source}.to_k",
                    f"{target}.v_proj": f"{source}.to_v",
                    f"{target}.output_proj": f"{source}.to_out.0",
                    f"{target}.q_norm": f"{source}.norm_q",
                    f"{target}.k_norm": f"{source}.norm_k",
                },
                *BLOCK,
            )
        ),
        *modules(
            {
                "x_embedder.proj.1": "patch_embed.proj",
                "t_embedder.1.linear_1": "time_embed.t_embedder.linear_1",
                "t_embedder.1.linear_2": "time_embed.t_embedder.linear_2",
                "t_embedding_norm": "time_embed.norm",
                "final_layer.adaln_modulation.1": "norm_out.linear_1",
                "final_layer.adaln_modulation.2": "norm_out.linear_2",
                "final_layer.linear": "proj_out",
            }
        ),
    ),
    signatures=(("patch_embed.proj.weight", "time_embed.t_embedder.linear_1.weight", "norm_out.linear_1.weight"),),
    absent=(POSITIONS,),
)
FIRST = "blocks.block{i}.blocks.", "transformer_blocks.{i}."  # a block is three
COSMOS_1 = DiffusersLayout(
    rules=(
        *(
            rule
            for number in range(3)
            for rule in modules(
                {
                    f"{number}.adaLN_modulation.1": f"norm{number + 1}.linear_1",
                    f"{number}.adaLN_modulation.2": f"norm{number + 1}.linear_2",
                },
                *FIRST,
            )
        ),
        *(
            rule
            for number in range(2)
            for rule in modules(
                {
                    f"{number}.block.attn.to_q.0": f"attn{number + 1}.to_q",
                    f"{number}.block.attn.to_q.1": f"attn{number + 1}.norm_q",
                    f"{number}.block.attn.to_k.0": f"attn{number + 1}.to_k",
                    f"{number}.block.attn.to_k.1": f"attn{number + 1}.norm_k",
                    f"{number}.block.attn.to_v.0": f"attn{number + 1}.to_v",
                    f"{number}.block.attn.to_out.0": f"attn{number + 1}.to_out.0",
                },
                *FIRST,
            )
        ),
        *modules({"2.block.layer1": "ff.net.0.proj", "2.block.layer2": "ff.net.2"}, *FIRST),
        *modules(
            {
                "x_embedder.proj.1": "patch_embed.proj",
                "t_embedder.1.linear_1": "time_embed.t_embedder.linear_1",
                "t_embedder.1.linear_2": "time_embed.t_embedder.linear_2",
                "affline_norm": "time_embed.norm",
                "final_layer.adaLN_modulation.1": "norm_out.linear_1",
                "final_layer.adaLN_modulation.2": "norm_out.linear_2",
                "final_layer.linear": "proj_out",
            }
        ),
        *parameters(same("pos_emb_t", "pos_emb_h", "pos_emb_w"), "extra_pos_embedder.", "learnable_pos_embed."),
    ),
    signatures=((POSITIONS, "time_embed.t_embedder.linear_1.weight"),),
)
