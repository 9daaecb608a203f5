"""Flux.1 (dev, schnell, Kontext, Fill, control), Chroma and Flux.2."""

from ..from_diffusers import flux as layouts
from ..spec import DiffusionFamily

INPUTS = ("txt_in.", "img_in.", "time_in.", "vector_in.", "guidance_in.", "final_layer.")
DOUBLE_BLOCK = "double_blocks.0.img_attn.proj.weight"
CHROMA = ("distilled_guidance_layer.norms.0.scale", "distilled_guidance_layer.0.norms.0.scale")
SHARED_MODULATION = "double_stream_modulation_img.lin.weight"  # of all blocks of Flux.2

FLUX = DiffusionFamily(
    name="flux",
    title="Flux.1",
    tag="flux",
    signatures=((DOUBLE_BLOCK,),),
    absent=(*CHROMA, SHARED_MODULATION),
    kept=INPUTS,
    from_diffusers=layouts.FLUX,
    diffusers_signatures=layouts.FLUX.signatures,
)
CHROMA_1 = DiffusionFamily(
    name="chroma",
    title="Chroma",
    tag="flux",
    signatures=tuple((DOUBLE_BLOCK, name) for name in CHROMA),
    kept=(*INPUTS, "distilled_guidance_layer."),
    from_diffusers=layouts.CHROMA,
    diffusers_signatures=layouts.CHROMA.signatures,
)
FLUX_2 = DiffusionFamily(
    name="flux2",
    title="Flux.2",
    tag="flux",
    signatures=((DOUBLE_BLOCK, SHARED_MODULATION),),
    kept=(*INPUTS, "_modulation"),
    from_diffusers=layouts.FLUX_2,
    diffusers_signatures=layouts.FLUX_2.signatures,
)
