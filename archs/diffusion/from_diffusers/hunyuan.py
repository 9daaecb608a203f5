"""HunyuanVideo, HunyuanVideo 1.5 and HunyuanImage 2.1."""

from .rules import DiffusersLayout, joined, modules, parameters, swapped

OWN = ("attn.to_q", "attn.to_k", "attn.to_v")
DOUBLE = "double_blocks.{i}.", "transformer_blocks.{i}."
TEXT = "txt_in.", "context_embedder."
REFINER = "txt_in.individual_token_refiner.blocks.{i}.", "context_embedder.token_refiner.refiner_blocks.{i}."
RULES = (
    *modules(
        {
            "img_mod.linear": "norm1.linear",
            "txt_mod.linear": "norm1_context.linear",
            "img_attn_qkv": OWN,
            "img_attn_proj": "attn.to_out.0",
            "img_attn_q_norm": "attn.norm_q",
            "img_attn_k_norm": "attn.norm_k",
            "img_mlp.fc1": "ff.net.0.proj",
            "img_mlp.fc2": "ff.net.2",
            "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
            "txt_attn_proj": "attn.to_add_out",
            "txt_attn_q_norm": "attn.norm_added_q",
            "txt_attn_k_norm": "attn.norm_added_k",
            "txt_mlp.fc1": "ff_context.net.0.proj",
            "txt_mlp.fc2": "ff_context.net.2",
        },
        *DOUBLE,
    ),
    *modules(
        {
            "linear1": joined(*OWN, "proj_mlp"),
            "linear2": "proj_out",
            "q_norm": "attn.norm_q",
            "k_norm": "attn.norm_k",
            "modulation.linear": "norm.linear",
        },
        "single_blocks.{i}.",
        "single_transformer_blocks.{i}.",
    ),
    *modules(
        {
            "input_embedder": "proj_in",
            "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
            "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
            "c_embedder.linear_1": "time_text_embed.text_embedder.linear_1",
            "c_embedder.linear_2": "time_text_embed.text_embedder.linear_2",
        },
        *TEXT,
    ),
    *modules(
        {
            "norm1": "norm1",
            "norm2": "norm2",
            "self_attn_qkv": OWN,
            "self_attn_proj": "attn.to_out.0",
            "mlp.fc1": "ff.net.0.proj",
            "mlp.fc2": "ff.net.2",
            "adaLN_modulation.1": "norm_out.linear",  # in the same order in both
        },
        *REFINER,
    ),
    *modules(
        {
            "img_in.proj": "x_embedder.proj",
            "final_layer.linear": "proj_out",
            "final_layer.adaLN_modulation.1": swapped("norm_out.linear"),
        }
    ),
)
BYT5 = modules(
    {"layernorm": "norm", "fc1": "linear_1", "fc2": "linear_2", "fc3": "linear_3"}, "byt5_in.", "context_embedder_2."
)
REFINED = "context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight"
HUNYUAN_VIDEO = DiffusersLayout(
    rules=(
        *RULES,
        *modules(
            {
                "time_in.mlp.0": "time_text_embed.timestep_embedder.linear_1",
                "time_in.mlp.2": "time_text_embed.timestep_embedder.linear_2",
                "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
                "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
                "guidance_in.mlp.0": "time_text_embed.guidance_embedder.linear_1",
                "guidance_in.mlp.2": "time_text_embed.guidance_embedder.linear_2",
            }
        ),
    ),
    signatures=((REFINED, "time_text_embed.text_embedder.linear_1.weight"),),
)
HUNYUAN_VIDEO_15 = DiffusersLayout(
    rules=(
        *RULES,
        *BYT5,
        *modules(
            {
                "time_in.mlp.0": "time_embed.timestep_embedder.linear_1",
                "time_in.mlp.2": "time_embed.timestep_embedder.linear_2",
                "time_r_in.mlp.0": "time_embed.timestep_embedder_r.linear_1",
                "time_r_in.mlp.2": "time_embed.timestep_embedder_r.linear_2",
                "vision_in.proj.0": "image_embedder.norm_in",
                "vision_in.proj.1": "image_embedder.linear_1",
                "vision_in.proj.3": "image_embedder.linear_2",
                "vision_in.proj.4": "image_embedder.norm_out",
            }
        ),
        *parameters({"cond_type_embedding.weight": "cond_type_embed.weight"}),
    ),
    signatures=((REFINED, "time_embed.timestep_embedder.linear_1.weight", "cond_type_embed.weight"),),
)
HUNYUAN_IMAGE = DiffusersLayout(
    rules=(
        *RULES,
        *BYT5,
        *modules(
            {
                "time_in.mlp.0": "time_guidance_embed.timestep_embedder.linear_1",
                "time_in.mlp.2": "time_guidance_embed.timestep_embedder.linear_2",
                "time_r_in.mlp.0": "time_guidance_embed.timestep_embedder_r.linear_1",
                "time_r_in.mlp.2": "time_guidance_embed.timestep_embedder_r.linear_2",
                "guidance_in.mlp.0": "time_guidance_embed.guidance_embedder.linear_1",
                "guidance_in.mlp.2": "time_guidance_embed.guidance_embedder.linear_2",
            }
        ),
    ),
    signatures=((REFINED, "time_guidance_embed.timestep_embedder.linear_1.weight"),),
)
