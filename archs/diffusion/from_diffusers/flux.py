"""Flux.1, LongCat-Image, Ovis-Image, Chroma and Flux.2."""

from .rules import DiffusersLayout, halves, joined, modules, parameters, same, swapped

DOUBLE = "double_blocks.{i}.", "transformer_blocks.{i}."
SINGLE = "single_blocks.{i}.", "single_transformer_blocks.{i}."
ADDED = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
OWN = ("attn.to_q", "attn.to_k", "attn.to_v")
ATTENTION = (
    *modules(
        {
            "img_attn.qkv": OWN,
            "img_attn.proj": "attn.to_out.0",
            "txt_attn.qkv": ADDED,
            "txt_attn.proj": "attn.to_add_out",
        },
        *DOUBLE,
    ),
    *parameters(
        {
            "img_attn.norm.query_norm.scale": "attn.norm_q.weight",
            "img_attn.norm.key_norm.scale": "attn.norm_k.weight",
            "txt_attn.norm.query_norm.scale": "attn.norm_added_q.weight",
            "txt_attn.norm.key_norm.scale": "attn.norm_added_k.weight",
        },
        *DOUBLE,
    ),
    *parameters({"norm.query_norm.scale": "attn.norm_q.weight", "norm.key_norm.scale": "attn.norm_k.weight"}, *SINGLE),
    *modules({"img_in": "x_embedder", "txt_in": "context_embedder", "final_layer.linear": "proj_out"}),
)
SINGLE_BLOCKS = modules({"linear1": joined(*OWN, "proj_mlp"), "linear2": "proj_out"}, *SINGLE)
BLOCKS = (  # of Flux.1, LongCat-Image and Chroma
    *ATTENTION,
    *SINGLE_BLOCKS,
    *modules(
        {
            "img_mlp.0": "ff.net.0.proj",
            "img_mlp.2": "ff.net.2",
            "txt_mlp.0": "ff_context.net.0.proj",
            "txt_mlp.2": "ff_context.net.2",
        },
        *DOUBLE,
    ),
)
MODULATION = (
    *modules({"img_mod.lin": "norm1.linear", "txt_mod.lin": "norm1_context.linear"}, *DOUBLE),
    *modules({"modulation.lin": "norm.linear"}, *SINGLE),
    *modules({"final_layer.adaLN_modulation.1": swapped("norm_out.linear")}),
)
FLUX = DiffusersLayout(
    rules=(
        *BLOCKS,
        *MODULATION,
        *modules(
            {
                "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
                "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
                "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
                "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
                "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
                "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
            }
        ),
    ),
    signatures=(
        (
            "context_embedder.weight",
            "time_text_embed.timestep_embedder.linear_1.weight",
            "transformer_blocks.0.norm1_context.linear.weight",
            "single_transformer_blocks.0.norm.linear.weight",
            "single_transformer_blocks.0.proj_mlp.weight",
        ),
    ),
)
LONGCAT_IMAGE = DiffusersLayout(
    rules=(
        *BLOCKS,
        *MODULATION,
        *modules(
            {
                "time_in.in_layer": "time_embed.timestep_embedder.linear_1",
                "time_in.out_layer": "time_embed.timestep_embedder.linear_2",
            }
        ),
    ),
    signatures=(
        (
            "context_embedder.weight",
            "time_embed.timestep_embedder.linear_1.weight",
            "transformer_blocks.0.norm1_context.linear.weight",
            "single_transformer_blocks.0.proj_mlp.weight",
        ),
    ),
)
OVIS_IMAGE = DiffusersLayout(
    rules=(
        *ATTENTION,
        *SINGLE_BLOCKS,
        *MODULATION,
        *modules(
            {
                **halves("img_mlp.up_proj", "img_mlp.gate_proj", "ff.net.0.proj"),
                "img_mlp.down_proj": "ff.net.2",
                **halves("txt_mlp.up_proj", "txt_mlp.gate_proj", "ff_context.net.0.proj"),
                "txt_mlp.down_proj": "ff_context.net.2",
            },
            *DOUBLE,
        ),
        *modules({"time_in.in_layer": "timestep_embedder.linear_1", "time_in.out_layer": "timestep_embedder.linear_2"}),
        *parameters({"txt_norm.scale": "context_embedder_norm.weight"}),
    ),
    signatures=(
        (
            "context_embedder_norm.weight",
            "timestep_embedder.linear_1.weight",
            "single_transformer_blocks.0.proj_mlp.weight",
        ),
    ),
)
GUIDANCE = "distilled_guidance_layer."
CHROMA = DiffusersLayout(
    rules=(
        *BLOCKS,
        *modules(same("in_proj", "out_proj"), GUIDANCE, GUIDANCE),
        *modules(
            {"layers.{i}.in_layer": "layers.{i}.linear_1", "layers.{i}.out_layer": "layers.{i}.linear_2"},
            GUIDANCE,
            GUIDANCE,
        ),
        *parameters({"norms.{i}.scale": "norms.{i}.weight"}, GUIDANCE, GUIDANCE),
    ),
    signatures=(
        (
            "distilled_guidance_layer.norms.0.weight",
            "context_embedder.weight",
            "single_transformer_blocks.0.proj_mlp.weight",
        ),
    ),
)
FLUX_2 = DiffusersLayout(
    rules=(
        *ATTENTION,
        *modules(
            {
                "img_mlp.0": "ff.linear_in",
                "img_mlp.2": "ff.linear_out",
                "txt_mlp.0": "ff_context.linear_in",
                "txt_mlp.2": "ff_context.linear_out",
            },
            *DOUBLE,
        ),
        *modules({"linear1": "attn.to_qkv_mlp_proj", "linear2": "attn.to_out"}, *SINGLE),
        *modules(
            {
                "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
                "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
                "guidance_in.in_layer": "time_guidance_embed.guidance_embedder.linear_1",
                "guidance_in.out_layer": "time_guidance_embed.guidance_embedder.linear_2",
                "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
                "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
                "single_stream_modulation.lin": "single_stream_modulation.linear",
                "final_layer.adaLN_modulation.1": swapped("norm_out.linear"),
            }
        ),
    ),
    signatures=(
        ("double_stream_modulation_img.linear.weight", "single_transformer_blocks.0.attn.to_qkv_mlp_proj.weight"),
    ),
)
