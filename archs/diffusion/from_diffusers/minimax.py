"""MiniMax H3, unpruned: its single file has the rows of queries, keys and values one after the other."""

from .rules import DiffusersLayout, Rule, modules, same, swapped


def _block(to: str, of: str) -> tuple[Rule, ...]:
    return modules(
        {
            "attn.qkv_proj": ("attn.to_q", "attn.to_k", "attn.to_v"),
            "attn.out_proj": "attn.to_out.0",
            "attn.q_norm": "attn.norm_q",
            "attn.k_norm": "attn.norm_k",
            "mlp.fc1": swapped("ff.net.0.proj"),  # gate before value; diffusers has the value first
            "mlp.fc2": "ff.net.2",
            **same("norm1", "norm2", "adaln_proj.linear"),
        },
        to,
        of,
    )


MINIMAX_H3 = DiffusersLayout(
    rules=(
        *_block("blocks.{i}.", "transformer_blocks.{i}."),
        *_block("token_refiner.blocks.{i}.", "token_refiner.refiner_blocks.{i}."),
        *modules(
            {
                "token_refiner.final_norm": "token_refiner.final_norm",
                "time_embedder.proj_in": "time_embedder.linear_1",
                "time_embedder.proj_out": "time_embedder.linear_2",
                "video_patch_proj": "proj_in",
                "audio_patch_proj": "audio_proj_in",
                "condition_proj": "context_embedder",
                "final_layer.norm": "norm_out.norm",
                "final_layer.adaln_proj.linear": "norm_out.linear",
                "final_layer.video_out": "proj_out",
                "final_layer.audio_out": "audio_proj_out",
            }
        ),
    ),
    signatures=(("token_refiner.refiner_blocks.0.attn.to_q.weight", "transformer_blocks.0.adaln_proj.linear.weight"),),
)
