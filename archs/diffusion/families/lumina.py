"""Lumina 2 and its relatives: Z-Image (base, Turbo, Edit) and NewBie.

Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `ldm/lumina`, stable-diffusion.cpp's `z_image.hpp`, lists of names.
"""

from ..from_diffusers import lumina as layouts
from ..spec import DiffusionFamily

NAMES = (
    "cap_embedder.1.weight",
    "context_refiner.0.attention.qkv.weight",
    "noise_refiner.0.attention.k_norm.weight",
    "layers.0.attention.qkv.weight",
    "x_embedder.weight",
    "final_layer.linear.weight",
)
PADDING, POOLED_TEXT = "x_pad_token", "clip_text_pooled_proj.0.weight"
KEPT = ("t_embedder.", "x_embedder.", "cap_embedder.", "final_layer.", "context_refiner.", "noise_refiner.")
UNUSED = {"norm_final.weight": "a norm that no reader uses, and which may hold infinities"}

LUMINA_2 = DiffusionFamily(
    name="lumina2",
    title="Lumina 2",
    tag="lumina2",
    signatures=(NAMES,),
    absent=(PADDING, POOLED_TEXT),
    kept=KEPT,
    ignored=UNUSED,
    refused={"sdcpp": "reads of this kind only Z-Image"},
    from_diffusers=layouts.LUMINA_2,
    diffusers_signatures=layouts.LUMINA_2.signatures,
)
Z_IMAGE = DiffusionFamily(
    name="z_image",
    title="Z-Image",
    tag="lumina2",
    signatures=((*NAMES, PADDING),),
    absent=(POOLED_TEXT,),
    kept=(*KEPT, "siglip_embedder.", "siglip_refiner."),
    float32=(PADDING, "cap_pad_token"),
    ignored=UNUSED,
    from_diffusers=layouts.Z_IMAGE,
    diffusers_signatures=layouts.Z_IMAGE.signatures,
)
NEWBIE = DiffusionFamily(
    name="newbie",
    title="NewBie",
    tag="lumina2",
    signatures=((*NAMES, POOLED_TEXT),),
    kept=(*KEPT, "clip_text_pooled_proj.", "time_text_embed."),
    ignored=UNUSED,
    refused={"sdcpp": "reads of this kind only Z-Image"},
)
