"""JoyImage (JoyAI-Image-Edit). Sources: ComfyUI's `ldm/joyimage`; diffusers has the same names."""

from ..spec import DiffusionFamily

JOYIMAGE = DiffusionFamily(
    name="joyimage",
    title="JoyImage",
    tag="wan",  # borrowed, as in the published files that ComfyUI-GGUF loads
    signatures=(
        (
            "double_blocks.0.attn.img_attn_qkv.weight",
            "double_blocks.0.attn.img_attn_q_norm.weight",
            "condition_embedder.time_embedder.linear_1.weight",
            "img_in.weight",
            "proj_out.weight",
        ),
    ),
    kept=("img_in.", "condition_embedder.", "proj_out."),
    float32=("modulate_table",),
)
