"""Youtu-VL: SigLIP 2 on patches that come as rows of pixels, with windows in most layers; squares of patches go
through a net of two matrices.
"""

from ..encoder import CLIP_VISION, VISION, Encoder, activation, always, at, maybe

GELU = ("gelu", "gelu_pytorch_tanh", "gelu_fast", "gelu_new", "gelu_accurate")

YOUTU_VL = Encoder(
    hf_classes=("YoutuVLForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": maybe("vision.image_size", 560),
        "projector_type": always("youtuvl"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        **activation("vision.hidden_act", **dict.fromkeys(GELU, "use_gelu"), silu="use_silu"),
        "vision.spatial_merge_size": maybe("vision.spatial_merge_size", 2),
        "vision.window_size": maybe("vision.window_size"),
        "vision.wa_layer_indexes": "vision.fullatt_block_indexes",
    },
    defaults={"vision": {"hidden_act": "gelu_pytorch_tanh"}},
    tensors={
        **at("siglip2.vision_model.", "", CLIP_VISION),
        "merger.ln_q": "mm.input_norm",
        "merger.mlp.{i}": "mm.{i}",
    },
)
