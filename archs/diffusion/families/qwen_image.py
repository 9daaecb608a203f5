"""Qwen-Image (with Edit and Layered), Qwen-Image 2.1, Mage-Flow and Lens.

Qwen-Image's names are those of diffusers, among them one that ComfyUI-GGUF takes for Flux's in that layout.

Sources: ComfyUI's `model_detection.py`, stable-diffusion.cpp's `qwen_image.hpp` and `lens.hpp`, lists of names.
"""

from ..from_diffusers import qwen as layouts
from ..spec import DiffusionFamily

TIME = "time_text_embed.timestep_embedder.linear_2.weight"
ENDS = ("img_in.weight", "norm_out.linear.weight", "proj_out.weight", TIME)
NAMES = (
    *ENDS,
    "txt_norm.weight",
    "transformer_blocks.0.attn.norm_added_q.weight",
    "transformer_blocks.0.img_mlp.net.0.proj.weight",
)
KEPT = ("img_in.", "txt_in.", "time_text_embed.", "norm_out.", "proj_out.")

QWEN_IMAGE = DiffusionFamily(
    name="qwen_image",
    title="Qwen-Image",
    tag="qwen_image",
    signatures=(NAMES,),
    shapes={"txt_norm.weight": (3584,)},
    kept=KEPT,
)
MAGE_FLOW = DiffusionFamily(
    name="mage_flow",
    title="Mage-Flow",
    tag="qwen_image",  # borrowed: its names are Qwen-Image's, and ComfyUI tells them apart by these shapes
    signatures=(NAMES,),
    shapes={"txt_norm.weight": (2560,), "proj_out.weight": (128, None)},
    kept=(*KEPT, "modulation_down."),
)
QWEN_IMAGE_2_1 = DiffusionFamily(
    name="qwen_image21",
    title="Qwen-Image 2.1",
    tag="qwen_image",  # borrowed
    signatures=(
        (*ENDS, "txt_in.text_norm.weight", "modulation.1.weight", "transformer_blocks.0.img_mlp.gate_up.weight"),
    ),
    kept=(*KEPT, "modulation."),
    from_diffusers=layouts.QWEN_IMAGE_21,
    diffusers_signatures=layouts.QWEN_IMAGE_21.signatures,
)
LENS = DiffusionFamily(
    name="lens",
    title="Lens",
    tag="qwen_image",  # borrowed
    signatures=((*ENDS, "transformer_blocks.0.attn.norm_added_q.weight", "transformer_blocks.0.img_mlp.w1.weight"),),
    kept=KEPT,
)
