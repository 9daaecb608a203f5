"""HunyuanVideo (1.0, 1.5, SkyReels, FramePack) and HunyuanImage 2.1.

The blocks have Tencent's names (`img_attn_proj`) or those of ComfyUI's repackaged files (`img_attn.proj`). Tencent's
own files of 1.5 have `img_attn_q`, `_k` and `_v`, which no reader joins.

Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `supported_models.py`, stable-diffusion.cpp's `hunyuan.hpp`.
"""

from ..from_diffusers import hunyuan as layouts
from ..spec import DiffusionFamily

ENDS = ("img_in.proj.weight", "txt_in.input_embedder.weight", "final_layer.linear.weight")
REFINER = "txt_in.individual_token_refiner.blocks.1.self_attn"
NAMES = (
    (*ENDS, "double_blocks.0.img_attn_proj.weight", f"{REFINER}_qkv.weight"),
    (*ENDS, "double_blocks.0.img_attn.proj.weight", f"{REFINER}.qkv.weight"),
)
SPLIT = "double_blocks.0.img_attn_q.weight"
GLYPHS, CONDITIONS = "byt5_in.fc1.weight", "cond_type_embedding.weight"
KEPT = (
    "txt_in.",
    "img_in.",
    "time_in.",
    "time_r_in.",
    "vector_in.",
    "vision_in.",
    "guidance_in.",
    "byt5_in.",
    "cond_type_embedding",
    "final_layer.",
)

HUNYUAN_VIDEO = DiffusionFamily(
    name="hyvid",
    title="HunyuanVideo",
    tag="hyvid",
    signatures=tuple((*names, "single_blocks.0.linear1.weight", "vector_in.in_layer.weight") for names in NAMES),
    absent=(GLYPHS, CONDITIONS, SPLIT),
    kept=KEPT,
    from_diffusers=layouts.HUNYUAN_VIDEO,
    diffusers_signatures=layouts.HUNYUAN_VIDEO.signatures,
)
HUNYUAN_VIDEO_1_5 = DiffusionFamily(
    name="hyvid15",
    title="HunyuanVideo 1.5",
    tag="hyvid",
    signatures=tuple((*names, CONDITIONS) for names in NAMES),
    absent=(SPLIT,),
    kept=KEPT,
    from_diffusers=layouts.HUNYUAN_VIDEO_15,
    diffusers_signatures=layouts.HUNYUAN_VIDEO_15.signatures,
)
HUNYUAN_IMAGE = DiffusionFamily(
    name="hunyuan_image",
    title="HunyuanImage 2.1",
    tag="hyvid",
    signatures=tuple((*names, GLYPHS) for names in NAMES),
    absent=(CONDITIONS, SPLIT),
    kept=KEPT,
    from_diffusers=layouts.HUNYUAN_IMAGE,
    diffusers_signatures=layouts.HUNYUAN_IMAGE.signatures,
)
