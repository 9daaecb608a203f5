"""MiniCPM-V 4.6: SigLIP with a merger of squares of patches between two of its layers, and a second one behind it."""

from ..spec import Config, Target
from ..tower import CLIP_VISION, VISION, Tower, always, at, maybe

MERGER: dict[str, Target] = {
    "layer_norm1": "ln1", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "pre_norm": "ds_ln", "linear_1": "ds_ffn_up", "linear_2": "ds_ffn_down",
}  # fmt: skip


def _inserted(config: Config) -> list[int]:
    found = config.get("insert_layer_id")
    return [int(config["vision"].get("insert_layer_id", 6) if found is None else found)]


MINICPM_V = Tower(
    hf_classes=("MiniCPMV4_6ForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": maybe("preprocessor.scale_resolution|vision.image_size"),
        "projector_type": always("minicpmv4_6"),
        "vision.projector.scale_factor": always(4),
        "vision.wa_layer_indexes": _inserted,
        "use_gelu": always(True),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
    },
    tensors={
        **at("vision_tower.", "", CLIP_VISION),
        **at("vision_tower.vit_merger.", "v.vit_merger.", MERGER),
        "merger.mlp.{i}.pre_norm": "mm.input_norm", "merger.mlp.{i}.linear_1": "mm.up",
        "merger.mlp.{i}.linear_2": "mm.down",
    },
    refused={"preprocessor.downsample_mode": lambda mode: mode not in (None, "16x")},
)  # fmt: skip
