"""Wan 2.1 and 2.2, video models."""

from ..from_diffusers import wan as layouts
from ..spec import DiffusionFamily

WAN = DiffusionFamily(
    name="wan",
    title="Wan",
    tag="wan",
    signatures=(("blocks.0.self_attn.norm_q.weight", "text_embedding.2.weight", "head.modulation"),),
    kept=("patch_embedding.", "text_embedding.", "time_embedding.", "time_projection.", "img_emb.", "head."),
    float32=(".modulation",),
    from_diffusers=layouts.WAN,
    diffusers_signatures=layouts.WAN.signatures,
)
