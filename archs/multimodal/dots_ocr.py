"""dots.ocr: a ViT with fused q/k/v, gated nets and RMS norms on images of native size; squares of patches go through a
net of two matrices.
"""

from ..encoder import FUSED_ATTENTION, VISION, Encoder, always, at
from ..spec import Target

LAYER: dict[str, Target] = {**FUSED_ATTENTION, "mlp.fc1": "ffn_gate", "mlp.fc2": "ffn_down", "mlp.fc3": "ffn_up"}

DOTS_OCR = Encoder(
    hf_classes=("DotsOCRForCausalLM",),
    metadata={
        **VISION,
        "vision.image_size": always(0),  # of any size
        "projector_type": always("dots_ocr"),
        "vision.image_min_pixels": "preprocessor.min_pixels",
        "vision.image_max_pixels": "preprocessor.max_pixels",
        "vision.attention.layer_norm_epsilon": "vision.rms_norm_eps",
        "vision.projector.scale_factor": "vision.spatial_merge_size",
        "use_silu": always(True),
    },
    tensors={
        **at("vision_tower.blocks.{i}.", "v.blk.{i}.", LAYER),
        "vision_tower.patch_embed.patchifier.proj": "v.patch_embd",
        "vision_tower.patch_embed.patchifier.norm": "v.pre_ln",
        "vision_tower.post_trunk_norm": "mm.post_norm",
        "vision_tower.merger.ln_q": "mm.input_norm",
        "vision_tower.merger.mlp.{i}": "mm.{i}",
    },
)
