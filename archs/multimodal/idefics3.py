"""Idefics 3 and SmolVLM: SigLIP; patches of a square are concatenated, and one matrix brings them to the text model's
width.
"""

from dataclasses import replace

from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Config
from ..wrapper import TOKENS, Files, Wrapper, edge


def _longest_edge(config: Config) -> int:
    size = config["preprocessor"].get("size")
    edge = size.get("longest_edge") if isinstance(size, dict) else None
    return int(edge or config["vision"]["image_size"])


def _is_llama(files: Files) -> bool:
    """Return whether the vocabulary is Llama 3's, as in Idefics 3: only that distinguishes the two classes."""
    return files.has("<|begin_of_text|>")


def _padding(files: Files) -> int:
    """Return the padding token's id; the class's default id may exceed smaller vocabularies."""
    return int(files.text.get("tokenizer.ggml.padding_token_id", len(files.text[TOKENS]) - 1))


SMOLVLM = Wrapper(
    "SmolVLMForConditionalGeneration",
    "smolvlm",
    fits=lambda files: not _is_llama(files),
    text_names={"model.": "model.text_model."},
    encoder_names={"vision_model.": "model.vision_model.", "connector.": "model.connector."},
    biased=("v.patch_embd", "v.post_ln"),
    config={"pad_token_id": _padding},
    tokens={"image_token_id": ("<image>",)},
    processor="SmolVLMProcessor",
    image_processor="SmolVLMImageProcessor",
    positions=0,
    preprocessor={
        "size": edge("longest_edge", "vision.preproc_image_size"),
        "max_image_size": edge("longest_edge"),
        "do_image_splitting": True,
    },
)
IDEFICS3 = Encoder(
    hf_classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    metadata={
        **VISION,
        "projector_type": always("idefics3"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": maybe("scale_factor", 2),
        "use_gelu": always(True),
        "vision.preproc_image_size": _longest_edge,
    },
    defaults={  # of SmolVLM 2, whose config.json omits more
        "vision": {
            "hidden_size": 1152,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "image_size": 224,
            "patch_size": 32,
        }
    },
    tensors={**at("vision_model.", "", CLIP_VISION), "connector.modality_projection.proj": "mm.model.fc"},
    fixed={"v.patch_embd.weight": "F32"},
    wrappers=(
        SMOLVLM,
        replace(
            SMOLVLM,
            hf_class="Idefics3ForConditionalGeneration",
            model_type="idefics3",
            fits=_is_llama,
            processor="Idefics3Processor",
            image_processor="Idefics3ImageProcessor",
        ),
    ),
)
