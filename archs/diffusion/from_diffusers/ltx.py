"""LTX-Video and LTX-2."""

from .rules import DiffusersLayout, modules, parameters, same

BLOCK = "transformer_blocks.{i}.", "transformer_blocks.{i}."
TIMES = ("emb.timestep_embedder.linear_1", "emb.timestep_embedder.linear_2", "linear")  # of an embedder of the time
ATTENTIONS = ("attn1", "attn2", "audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn")
EMBEDDERS = {  # published → in diffusers
    "adaln_single": "time_embed",
    "audio_adaln_single": "audio_time_embed",
    "prompt_adaln_single": "prompt_adaln",
    "audio_prompt_adaln_single": "audio_prompt_adaln",
    "av_ca_video_scale_shift_adaln_single": "av_cross_attn_video_scale_shift",
    "av_ca_audio_scale_shift_adaln_single": "av_cross_attn_audio_scale_shift",
    "av_ca_a2v_gate_adaln_single": "av_cross_attn_video_a2v_gate",
    "av_ca_v2a_gate_adaln_single": "av_cross_attn_audio_v2a_gate",
}
RULES = (  # LTX-Video has some of the modules of LTX-2
    *modules(
        {
            f"{attention}.{target}": f"{attention}.{source}"
            for attention in ATTENTIONS
            for target, source in (
                *same("to_q", "to_k", "to_v", "to_out.0", "to_gate_logits").items(),
                ("q_norm", "norm_q"),
                ("k_norm", "norm_k"),
            )
        },
        *BLOCK,
    ),
    *modules(same("ff.net.0.proj", "ff.net.2", "audio_ff.net.0.proj", "audio_ff.net.2"), *BLOCK),
    *parameters(
        {
            **same("scale_shift_table", "audio_scale_shift_table"),
            **same("prompt_scale_shift_table", "audio_prompt_scale_shift_table"),
            "scale_shift_table_a2v_ca_video": "video_a2v_cross_attn_scale_shift_table",
            "scale_shift_table_a2v_ca_audio": "audio_a2v_cross_attn_scale_shift_table",
        },
        *BLOCK,
    ),
    *modules({f"{target}.{each}": f"{source}.{each}" for target, source in EMBEDDERS.items() for each in TIMES}),
    *modules(
        {
            "patchify_proj": "proj_in",
            "audio_patchify_proj": "audio_proj_in",
            **same("caption_projection.linear_1", "caption_projection.linear_2", "proj_out"),
            **same("audio_caption_projection.linear_1", "audio_caption_projection.linear_2", "audio_proj_out"),
        }
    ),
    *parameters(same("scale_shift_table", "audio_scale_shift_table")),
)
TIME = "time_embed.emb.timestep_embedder.linear_1.weight"
AUDIO = "audio_proj_in.weight"  # of LTX-2 alone
LTXV = DiffusersLayout(RULES, ((TIME, "proj_in.weight", "caption_projection.linear_1.weight"),), absent=(AUDIO,))
LTX_2 = DiffusersLayout(RULES, ((TIME, "proj_in.weight", AUDIO),))
