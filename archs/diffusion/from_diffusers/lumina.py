"""Lumina Image 2 and Z-Image."""

from .rules import DiffusersLayout, Made, Rule, joined, modules, parameters, same

LISTS = ("noise_refiner", "context_refiner", "layers")


def _list(name: str, entries: dict[str, str | tuple[str, ...] | Made]) -> tuple[Rule, ...]:
    return modules(entries, f"{name}.{{i}}.", f"{name}.{{i}}.")


LUMINA_2 = DiffusersLayout(
    rules=(
        *(
            rule
            for name in LISTS
            for rule in _list(
                name,
                {
                    "attention.qkv": joined("attn.to_q", "attn.to_k", "attn.to_v"),  # fewer keys and values
                    "attention.out": "attn.to_out.0",
                    "attention.q_norm": "attn.norm_q",
                    "attention.k_norm": "attn.norm_k",
                    "feed_forward.w1": "feed_forward.linear_1",
                    "feed_forward.w2": "feed_forward.linear_2",
                    "feed_forward.w3": "feed_forward.linear_3",
                    "attention_norm2": "norm2",
                    **same("ffn_norm1", "ffn_norm2"),
                },
            )
        ),
        *(
            rule
            for name in ("noise_refiner", "layers")
            for rule in _list(name, {"attention_norm1": "norm1.norm", "adaLN_modulation.1": "norm1.linear"})
        ),
        *_list("context_refiner", {"attention_norm1": "norm1"}),
        *modules(
            {
                "x_embedder": "x_embedder",
                "t_embedder.mlp.0": "time_caption_embed.timestep_embedder.linear_1",
                "t_embedder.mlp.2": "time_caption_embed.timestep_embedder.linear_2",
                "cap_embedder.0": "time_caption_embed.caption_embedder.0",
                "cap_embedder.1": "time_caption_embed.caption_embedder.1",
                "final_layer.adaLN_modulation.1": "norm_out.linear_1",
                "final_layer.linear": "norm_out.linear_2",
            }
        ),
    ),
    signatures=(("time_caption_embed.caption_embedder.1.weight", "context_refiner.0.attn.to_q.weight"),),
)
Z_IMAGE = DiffusersLayout(
    rules=(
        *(
            rule
            for name in (*LISTS, "siglip_refiner")
            for rule in _list(
                name,
                {
                    "attention.qkv": ("attention.to_q", "attention.to_k", "attention.to_v"),
                    "attention.out": "attention.to_out.0",
                    "attention.q_norm": "attention.norm_q",
                    "attention.k_norm": "attention.norm_k",
                    **same("feed_forward.w1", "feed_forward.w2", "feed_forward.w3", "adaLN_modulation.0"),
                    **same("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"),
                },
            )
        ),
        *modules(
            {
                "x_embedder": "all_x_embedder.2-1",
                "final_layer.linear": "all_final_layer.2-1.linear",
                "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
                **same("t_embedder.mlp.0", "t_embedder.mlp.2", "cap_embedder.0", "cap_embedder.1"),
                **same("siglip_embedder.0", "siglip_embedder.1"),
            }
        ),
        *parameters(same("x_pad_token", "cap_pad_token", "siglip_pad_token")),
    ),
    signatures=(("all_x_embedder.2-1.weight", "context_refiner.0.attention.to_q.weight"),),
)
