"""Idefics 3 and SmolVLM: SigLIP; squares of patches are put side by side, and one matrix brings them to the text
model's width.
"""

from ..spec import Config
from ..tower import CLIP_VISION, VISION, Tower, always, at, maybe


def _longest_edge(config: Config) -> int:
    size = config["preprocessor"].get("size")
    edge = size.get("longest_edge") if isinstance(size, dict) else None
    return int(edge or config["vision"]["image_size"])


IDEFICS3 = Tower(
    hf_classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    metadata={
        **VISION,
        "projector_type": always("idefics3"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": maybe("scale_factor", 2),
        "use_gelu": always(True),
        "vision.preproc_image_size": _longest_edge,
    },
    defaults={  # of SmolVLM 2, whose config.json says less
        "vision": {
            "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
            "image_size": 224, "patch_size": 32,
        },
    },
    tensors={**at("vision_model.", "", CLIP_VISION), "connector.modality_projection.proj": "mm.model.fc"},
    fixed={"v.patch_embd.weight": "F32"},
)  # fmt: skip
