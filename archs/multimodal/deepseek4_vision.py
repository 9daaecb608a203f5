"""DeepSeek V4's vision encoder: a ViT with gated nets and RMS norms on images of native size; patches of a square
concatenated, a net of two matrices, and learned embeddings around rows and images.
"""

from quants import Tensor

from ..config import other_than
from ..encoder import VISION, Encoder, always, at, maybe
from ..spec import Config, Target, TensorMap
from ..transforms import Invertible, part, reshape
from ..wrapper import Wrapper

PATCHES, RATIO, USUAL_SIDE = 384, 8, 16  # programs hardcode the first two
LAYER: dict[str, Target] = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.wqkv": "attn_qkv",
    "attn.wo": "attn_out",
    "mlp.w2": "ffn_down",
    "mlp.w1": (TensorMap("ffn_gate", part(0, 2)), TensorMap("ffn_up", part(1, 2))),
}


def _convolution(tensor: Tensor, config: Config) -> Tensor:
    """Return a matrix over (colour, row, column) of patches as a convolution."""
    side = int(config["vision_patch_size"])
    return reshape(tensor, (tensor.shape[0], 3, side, side))


def _matrix(tensor: Tensor, config: Config) -> Tensor:
    """Return the convolution as a matrix: the inverse."""
    return reshape(tensor, (tensor.shape[0], tensor.size // tensor.shape[0]))


def _image_size(config: Config) -> int:
    return int(config["vision_patch_size"]) * int(config["vision_downsample_ratio"]) * USUAL_SIDE


DEEPSEEK4_VISION = Encoder(
    hf_classes=("DeepseekV4ForCausalLM",),
    metadata={
        **VISION,
        "vision.embedding_length": "vision_dim",
        "vision.image_size": _image_size,  # of any size; programs want one
        "vision.patch_size": "vision_patch_size",
        "vision.feed_forward_length": "vision_inter_dim",
        "vision.block_count": "vision_n_layers",
        "vision.attention.head_count": "vision_n_heads",
        "vision.image_mean": maybe("preprocessor.image_mean", [0.5, 0.5, 0.5]),
        "vision.image_std": maybe("preprocessor.image_std", [0.5, 0.5, 0.5]),
        "projector_type": always("deepseek4v"),
        "vision.attention.layer_norm_epsilon": always(1e-6),
        "use_silu": always(True),
        "vision.projector.scale_factor": "vision_downsample_ratio",
        "vision.image_min_pixels": "vision_min_pixels",
    },
    tensors={
        **at("vision.blocks.{i}.", "v.blk.{i}.", LAYER),
        "vision.patch_embed.proj.weight": TensorMap("v.patch_embd.weight", Invertible(_convolution, _matrix)),
        "vision.patch_embed.proj.bias": "v.patch_embd.bias",
        "vision.norm": "v.post_ln",
        "aligner.w1": "mm.1",
        "aligner.w2": "mm.2",
        "image_newline": "v.image_newline",
        **{f"image_{name}": f"v.token_embd.img_{name}" for name in ("start", "end", "pad")},
    },
    claimed=("vision.*", "aligner.*", "image_*"),
    refused={"vision_max_n_token": other_than(PATCHES), "vision_max_wh_ratio": other_than(RATIO)},
    wrappers=(
        Wrapper(
            "DeepseekV4ForCausalLM",
            "deepseek_v4",
            texts=("deepseek4",),
            text_in=("",),
            config={
                "text.model_type": "deepseek_v4",
                "vision_rope_theta": 10_000.0,
                "vision_max_n_token": PATCHES,
                "vision_max_wh_ratio": RATIO,
            },
        ),
    ),
)
