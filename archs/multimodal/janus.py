"""Janus: SigLIP's layers and a net of matrices for input images. The image generator is left out."""

from ..encoder import CLIP_VISION, VISION, Encoder, activation, always, at, maybe
from ..spec import Config, Tensors

DRAWN = "generates images, which no program does from such files"
NET = "aligner."


def _net_width(config: Config) -> int:
    vision = config["vision"]
    return int(vision.get("intermediate_size") or round(vision["hidden_size"] * vision["mlp_ratio"]))


def _in_line(config: Config, tensors: Tensors) -> Tensors:
    """Return the net's first matrix and those after it, numbered together."""

    def placed(name: str) -> str:
        if name.startswith(f"{NET}fc1."):
            return name.replace("fc1", "0", 1)
        number, _, rest = name.removeprefix(f"{NET}hidden_layers.").partition(".")
        return f"{NET}{int(number) + 1}.{rest}" if name.startswith(NET) and number.isdecimal() else name

    return {placed(name): tensor for name, tensor in tensors.items()}


JANUS = Encoder(
    hf_classes=("JanusForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.feed_forward_length": _net_width,
        "projector_type": always("janus_pro"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        **activation("vision.hidden_act", gelu="use_gelu", silu="use_silu"),
    },
    defaults={
        "vision": {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 16,
            "hidden_act": "gelu",
            "mlp_ratio": 4.0,
        }
    },
    tensors={
        **at("vision_model.", "", CLIP_VISION),
        "vision_model.encoder.layers.{i}.self_attn.projection_layer": "v.blk.{i}.attn_out",
        f"{NET}{{i}}": "mm.{i}",
    },
    ignored=dict.fromkeys(("vqmodel.*", "generation_embeddings.*", "generation_aligner.*", "generation_head.*"), DRAWN),
    claimed=(f"{NET}*",),
    prepare=_in_line,
    no_way_back="Janus has parts that make images, which are in neither file",
)
