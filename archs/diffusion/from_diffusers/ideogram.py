"""Ideogram 4."""

from .rules import DiffusersLayout, modules, same

IDEOGRAM_4 = DiffusersLayout(
    rules=(
        *modules(
            {
                "attention.qkv": ("attention.to_q", "attention.to_k", "attention.to_v"),
                "attention.o": "attention.to_out.0",
                **same("attention.norm_q", "attention.norm_k", "adaln_modulation"),
                **same("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
                **same("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"),
            },
            "layers.{i}.",
            "layers.{i}.",
        ),
        *modules(
            same(
                "input_proj",
                "llm_cond_norm",
                "llm_cond_proj",
                "t_embedding.mlp_in",
                "t_embedding.mlp_out",
                "adaln_proj",
                "embed_image_indicator",
                "final_layer.linear",
                "final_layer.adaln_modulation",
            )
        ),
    ),
    signatures=(("embed_image_indicator.weight", "layers.0.attention.to_q.weight"),),
)
