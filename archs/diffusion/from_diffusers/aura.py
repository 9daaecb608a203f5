"""AuraFlow."""

from .rules import DiffusersLayout, modules, parameters, same, swapped

AURA = DiffusersLayout(
    rules=(
        *modules(
            {
                "modX.1": "norm1.linear",
                "modC.1": "norm1_context.linear",
                "attn.w1q": "attn.add_q_proj",
                "attn.w1k": "attn.add_k_proj",
                "attn.w1v": "attn.add_v_proj",
                "attn.w1o": "attn.to_add_out",
                "attn.w2q": "attn.to_q",
                "attn.w2k": "attn.to_k",
                "attn.w2v": "attn.to_v",
                "attn.w2o": "attn.to_out.0",
                "mlpX.c_fc1": "ff.linear_1",
                "mlpX.c_fc2": "ff.linear_2",
                "mlpX.c_proj": "ff.out_projection",
                "mlpC.c_fc1": "ff_context.linear_1",
                "mlpC.c_fc2": "ff_context.linear_2",
                "mlpC.c_proj": "ff_context.out_projection",
            },
            "double_layers.{i}.",
            "joint_transformer_blocks.{i}.",
        ),
        *modules(
            {
                "modCX.1": "norm1.linear",
                "attn.w1q": "attn.to_q",
                "attn.w1k": "attn.to_k",
                "attn.w1v": "attn.to_v",
                "attn.w1o": "attn.to_out.0",
                "mlp.c_fc1": "ff.linear_1",
                "mlp.c_fc2": "ff.linear_2",
                "mlp.c_proj": "ff.out_projection",
            },
            "single_layers.{i}.",
            "single_transformer_blocks.{i}.",
        ),
        *modules(
            {
                "init_x_linear": "pos_embed.proj",
                "cond_seq_linear": "context_embedder",
                "t_embedder.mlp.0": "time_step_proj.linear_1",
                "t_embedder.mlp.2": "time_step_proj.linear_2",
                "final_linear": "proj_out",
                "modF.1": swapped("norm_out.linear"),
            }
        ),
        *parameters({"positional_encoding": "pos_embed.pos_embed", **same("register_tokens")}),
    ),
    signatures=(
        ("register_tokens", "time_step_proj.linear_1.weight", "joint_transformer_blocks.0.attn.add_q_proj.weight"),
    ),
)
