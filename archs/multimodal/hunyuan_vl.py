"""Hunyuan-VL and Hunyuan-OCR: a ViT with learned positions on images of native size; convolutions merge squares of
patches between two norms, with learned embeddings around rows and images.
"""

from ..encoder import LLAMA_ATTENTION, PATCHES, VISION, Encoder, always, at, maybe
from ..spec import Target, TensorMap
from ..transforms import skip_rows
from ..typed_json import Whole
from ..wrapper import Wrapper, key, positions_side

LAYER: dict[str, Target] = {**LLAMA_ATTENTION, "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}


HUNYUAN_VL = Encoder(
    hf_classes=("HunYuanVLForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": maybe("vision.image_size|vision.max_image_size", 2048),
        "projector_type": always("hunyuanvl"),
        "use_gelu": always(True),
        "vision.attention.layer_norm_epsilon": maybe("vision.rms_norm_eps", 1e-5),
        "vision.spatial_merge_size": maybe("vision.spatial_merge_size", 2),
        "vision.image_min_pixels": "preprocessor.min_pixels",
        "vision.image_max_pixels": "preprocessor.max_pixels",
    },
    defaults={
        "vision": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "patch_size": 16,
        }
    },
    keys={"max_image_size": Whole(1, 1 << 20)},  # SmolVLM's is a mapping, which nothing reads
    tensors={
        **at("vit.layers.{i}.", "v.blk.{i}.", LAYER),
        "vit.embeddings.patch_embedding": "v.patch_embd",
        # without that of no patch
        "vit.embeddings.position_embedding.weight": TensorMap("v.position_embd.weight", skip_rows(1)),
        **at(
            "vit.perceive.",
            "",
            {
                "before_rms": "mm.pre_norm",
                "after_rms": "mm.post_norm",
                "proj.{i}": "mm.{i}",
                "mlp": "mm.model.fc",
                "image_newline": "v.image_newline",
                "image_sep": "v.view_seperator",
                "image_begin": "mm.image_begin",
                "image_end": "mm.image_end",
            },
        ),
    },
    fixed={"mm.[02].weight": PATCHES},
    wrappers=(
        Wrapper(
            "HunYuanVLForConditionalGeneration",
            "hunyuan_vl",
            texts=("hunyuan_vl",),
            needed=lambda files: ("mm.0", "mm.2"),
            biased=("v.patch_embd", "mm.0", "mm.2", "mm.model.fc"),
            config={
                "vision.max_image_size": positions_side,
                "vision.hidden_act": "gelu",
                "vision.interpolate_mode": "bilinear",
                "vision.out_hidden_size": key("vision.projection_dim"),
            },
            tokens={
                "image_token_id": ("<｜hy_place▁holder▁no▁102｜>", "<image>"),
                "im_start_id": ("<｜hy_place▁holder▁no▁100｜>",),
                "im_end_id": ("<｜hy_place▁holder▁no▁101｜>",),
                "im_newline_id": ("<｜hy_place▁holder▁no▁103｜>",),
            },
            processor="HunYuanVLProcessor",
            image_processor="HunYuanVLImageProcessor",
            preprocessor={
                "patch_size": key("vision.patch_size"),
                "temporal_patch_size": 1,
                "merge_size": key("vision.spatial_merge_size"),
            },
        ),
    ),
)
