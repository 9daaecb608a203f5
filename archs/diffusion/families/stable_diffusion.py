"""U-Nets: Stable Diffusion 1 and 2, SDXL with its derivatives (SSD-1B, inpainting), and the refiner of SDXL.

Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `model_detection.py`, stable-diffusion.cpp's `unet.hpp`, and lists of
names of published checkpoints. Convolutions stay F16: ComfyUI-GGUF alone reads them in rows of 256.
"""

from ..from_diffusers import unet as layouts
from ..spec import DiffusionFamily

ENDS = ("input_blocks.0.0.weight", "out.2.weight", "time_embed.2.weight")
CLASSES, CLASSES_2 = "label_emb.0.0.weight", "label_emb.0.2.weight"
FOURTH_LEVEL = "input_blocks.9.0.op.weight"  # the third downsampling
VIDEO = "input_blocks.1.0.time_stack.in_layers.2.weight"  # of Stable Video Diffusion
THREE_LEVELS = (
    "input_blocks.3.0.op.weight",
    "input_blocks.6.0.op.weight",
    "output_blocks.2.2.conv.weight",
    "output_blocks.5.2.conv.weight",
)
FOUR_LEVELS = (
    "input_blocks.3.0.op.weight",
    "input_blocks.6.0.op.weight",
    FOURTH_LEVEL,
    "output_blocks.2.1.conv.weight",
    "output_blocks.5.2.conv.weight",
    "output_blocks.8.2.conv.weight",
)
KEPT = (
    "time_embed.",
    "time_embedding.",
    "add_embedding.",
    "label_emb.",
    "conv_in.",
    "conv_out.",
    "input_blocks.0.0.",
    "out.2.",
)

SD_1 = DiffusionFamily(
    name="sd1",
    title="Stable Diffusion 1 and 2",
    tag="sd1",
    signatures=((*ENDS, *FOUR_LEVELS),),
    absent=(CLASSES, CLASSES_2, VIDEO, *layouts.SD_1.absent),
    kept=KEPT,
    rearranged=True,
    from_diffusers=layouts.SD_1,
    diffusers_signatures=layouts.SD_1.signatures,
)
SDXL = DiffusionFamily(
    name="sdxl",
    title="SDXL",
    tag="sdxl",
    signatures=((*ENDS, CLASSES, *THREE_LEVELS),),
    absent=(FOURTH_LEVEL, VIDEO, *layouts.SDXL.absent),
    kept=KEPT,
    rearranged=True,
    from_diffusers=layouts.SDXL,
    diffusers_signatures=layouts.SDXL.signatures,
)
SDXL_REFINER = DiffusionFamily(
    name="sdxl_refiner",
    title="SDXL refiner",
    tag="sdxl",
    signatures=((*ENDS, CLASSES, *FOUR_LEVELS),),
    absent=(VIDEO,),
    shapes={CLASSES: (None, 2560)},
    kept=KEPT,
    rearranged=True,
    from_diffusers=layouts.SDXL_REFINER,
    diffusers_signatures=layouts.SDXL_REFINER.signatures,
)
SD_UNCLIP = DiffusionFamily(
    name="sd_unclip",
    title="Stable Diffusion 2 unCLIP",
    tag="sdxl",
    signatures=((*ENDS, CLASSES, *FOUR_LEVELS),),
    absent=(VIDEO,),
    shapes={CLASSES: (None, 2048)},
    kept=KEPT,
    rearranged=True,
    from_diffusers=layouts.SD_UNCLIP,
    diffusers_signatures=layouts.SD_UNCLIP.signatures,
)
