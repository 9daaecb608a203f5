"""LTX-Video and LTX-2, which has sound. The `config` of their safetensors header must be in the file.

Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `ldm/lightricks`, stable-diffusion.cpp's `ltxv.hpp`.
"""

from ..from_diffusers import ltx as layouts
from ..spec import DiffusionFamily

SOUND = "audio_adaln_single.linear.weight"
NAMES = (
    "adaln_single.emb.timestep_embedder.linear_2.weight",
    "transformer_blocks.0.scale_shift_table",
    "transformer_blocks.0.attn1.to_q.weight",
    "patchify_proj.weight",
    "proj_out.weight",
)
KEPT = ("adaln_single.", "caption_projection.", "patchify_proj.", "proj_out.")
FLOAT_32 = ("scale_shift_table", "learnable_registers")

LTX_VIDEO = DiffusionFamily(
    name="ltxv",
    title="LTX-Video",
    tag="ltxv",
    signatures=((*NAMES, "caption_projection.linear_2.weight"),),
    absent=(SOUND, *layouts.LTXV.absent),
    kept=KEPT,
    float32=FLOAT_32,
    from_diffusers=layouts.LTXV,
    diffusers_signatures=layouts.LTXV.signatures,
)
LTX_2 = DiffusionFamily(
    name="ltx2",
    title="LTX-2",
    tag="ltxv",
    signatures=((*NAMES, SOUND, "audio_patchify_proj.weight", "transformer_blocks.0.audio_attn1.to_q.weight"),),
    kept=KEPT,
    float32=FLOAT_32,
    from_diffusers=layouts.LTX_2,
    diffusers_signatures=layouts.LTX_2.signatures,
)
