"""Flux.1 (dev, schnell, Kontext, Fill, control), Flux.2 (dev, klein), Chroma (and Radiance), Ovis-Image, LongCat-Image.

Sources: ComfyUI's `model_detection.py`, stable-diffusion.cpp's `flux.hpp`, and lists of names of published checkpoints.
"""

from ..from_diffusers import flux as layouts
from ..spec import DiffusionFamily

INPUTS = ("txt_in.", "img_in.", "time_in.", "vector_in.", "guidance_in.", "final_layer.")
BLOCKS = ("double_blocks.0.img_attn.proj.weight", "single_blocks.0.linear1.weight")
OUTPUT = "final_layer.linear.weight"
POOLED_TEXT = "vector_in.in_layer.weight"
# Norms of ComfyUI are named weight since 2026, scale before.
CHROMA = tuple(f"distilled_guidance_layer.{stem}norms.0.{name}" for stem in ("", "0.") for name in ("scale", "weight"))
NERF = ("nerf_blocks.0.norm.scale", "nerf_blocks.0.norm.weight")
SHARED_MODULATION = "double_stream_modulation_img.lin.weight"  # of all blocks of Flux.2
GATED_MLP = "double_blocks.0.img_mlp.gate_proj.weight"
TOKEN_REFINER = "txt_in.input_embedder.weight"  # of HunyuanVideo, whose blocks have the same names
RELATIVES = (*CHROMA, SHARED_MODULATION, GATED_MLP, TOKEN_REFINER)

FLUX = DiffusionFamily(
    name="flux",
    title="Flux.1",
    tag="flux",
    signatures=((*BLOCKS, "img_in.weight", POOLED_TEXT, OUTPUT),),
    absent=RELATIVES,
    kept=INPUTS,
    from_diffusers=layouts.FLUX,
    diffusers_signatures=layouts.FLUX.signatures,
)
LONGCAT_IMAGE = DiffusionFamily(
    name="longcat_image",
    title="LongCat-Image",
    tag="flux",
    signatures=((*BLOCKS, "img_in.weight", "txt_in.weight", OUTPUT),),
    absent=(*RELATIVES, POOLED_TEXT),
    shapes={"txt_in.weight": (None, 3584)},
    kept=INPUTS,
    from_diffusers=layouts.LONGCAT_IMAGE,
    diffusers_signatures=layouts.LONGCAT_IMAGE.signatures,
)
OVIS_IMAGE = DiffusionFamily(
    name="ovis_image",
    title="Ovis-Image",
    tag="flux",
    signatures=((*BLOCKS, "img_in.weight", GATED_MLP, OUTPUT),),
    kept=INPUTS,
    from_diffusers=layouts.OVIS_IMAGE,
    diffusers_signatures=layouts.OVIS_IMAGE.signatures,
)
CHROMA_1 = DiffusionFamily(
    name="chroma",
    title="Chroma",
    tag="flux",
    signatures=tuple((*BLOCKS, "img_in.weight", name, OUTPUT) for name in CHROMA),
    absent=NERF,
    kept=(*INPUTS, "distilled_guidance_layer."),
    from_diffusers=layouts.CHROMA,
    diffusers_signatures=layouts.CHROMA.signatures,
)
CHROMA_RADIANCE = DiffusionFamily(
    name="chroma_radiance",
    title="Chroma Radiance",
    tag="flux",
    signatures=tuple((*BLOCKS, "img_in_patch.weight", chroma, nerf) for chroma in CHROMA for nerf in NERF),
    kept=(*INPUTS, "distilled_guidance_layer.", "img_in_patch.", "nerf_"),
)
FLUX_2 = DiffusionFamily(
    name="flux2",
    title="Flux.2",
    tag="flux",
    signatures=((*BLOCKS, "img_in.weight", SHARED_MODULATION, OUTPUT),),
    kept=(*INPUTS, "_modulation"),
    from_diffusers=layouts.FLUX_2,
    diffusers_signatures=layouts.FLUX_2.signatures,
)
