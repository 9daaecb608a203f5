"""Gemma 3n: MobileNet V5 for images, stages of convolutions and attention; a conformer for audio. Both have tokens of
their own in the text, whose embeddings are in this file.
"""

from typing import Any

import numpy as np

from ..config import other_than
from ..encoder import AUDIO, VISION, Encoder, always, at, maybe
from ..spec import Config, Target, TensorMap, Tensors
from ..transforms import Invertible, reshape, take
from ..wrapper import TOKENS, Files, Wrapper, key, rows, square

# Parts of a block, by its type: at the edge, inverted bottleneck, attention.
BLOCK = (
    "conv_exp",
    "bn1",
    "conv_pwl",
    "bn2",
    *(f"{name}.{part}" for name in ("dw_start", "dw_mid", "pw_exp", "pw_proj") for part in ("conv", "bn")),
    "attn.query.proj",
    "attn.key.proj",
    "attn.value.proj",
    "attn.output.proj",
    "attn.key.down_conv",
    "attn.key.norm",
    "attn.value.down_conv",
    "attn.value.norm",
    "norm",
)
AUDIO_LAYER: dict[str, Target] = {
    **at(
        "attention.",
        "",
        {
            "attn.q_proj": "attn_q",
            "attn.k_proj": "attn_k",
            "attn.v_proj": "attn_v",
            "post": "attn_out",
            "attn.per_dim_scale": "per_dim_scale",
            "attn.relative_position_embedding.pos_proj": "linear_pos",
            "pre_attn_norm": "ln1",
            "post_norm": "ln2",
        },
    ),
    **at(
        "ffw_layer_start.",
        "",
        {
            "pre_layer_norm": "ffn_norm",
            "ffw_layer_1": "ffn_up",
            "ffw_layer_2": "ffn_down",
            "post_layer_norm": "ffn_post_norm",
        },
    ),
    **at(
        "ffw_layer_end.",
        "",
        {
            "pre_layer_norm": "ffn_norm_1",
            "ffw_layer_1": "ffn_up_1",
            "ffw_layer_2": "ffn_down_1",
            "post_layer_norm": "ffn_post_norm_1",
        },
    ),
    **at(
        "lconv1d.",
        "",
        {
            "pre_layer_norm": "conv_norm",
            "linear_start": "conv_pw1",
            "depthwise_conv1d": "conv_dw",
            "conv_norm": "norm_conv",
            "linear_end": "conv_pw2",
        },
    ),
    "norm": "layer_pre_norm",
}
WORDS: dict[str, Target] = {
    "embedding": "embedding",
    "embedding_projection": "input_projection",
    "hard_embedding_norm": "hard_emb_norm",
    "soft_embedding_norm": "soft_emb_norm",
}


# Audio constants that programs hardcode: tokens of a clip, how far frames look back, the share that is kept.
SOUNDS: dict[str, Any] = {
    "audio.conf_attention_context_left": 13,
    "audio.conf_attention_context_right": 0,
    "audio.conf_attention_logit_cap": 50.0,
    "audio.conf_residual_weight": 0.5,
    "audio.conf_reduction_factor": 4,
    "audio.sscp_conv_group_norm_eps": 1e-3,
    "audio.sscp_conv_stride_size": [[2, 2], [2, 2]],
    "audio.sscp_conv_kernel_size": [[3, 3], [3, 3]],
    "audio.rms_norm_eps": 1e-6,
    "audio_soft_tokens_per_image": 188,
}


# a convolution's bias, one number for each channel, as (1, channels, 1, 1)
_over_images = Invertible(
    lambda tensor, config: reshape(tensor, (1, tensor.size, 1, 1)),
    lambda tensor, config: reshape(tensor, (tensor.size,)),
)


def _side(config: Config) -> int:
    size = config["preprocessor"].get("size")
    return int((size.get("height") if isinstance(size, dict) else None) or 768)


def _patch(config: Config) -> int:
    """Return the patch size as llama.cpp counts it; images are not cut into patches."""
    return _side(config) // int(config["preprocessor"].get("image_seq_length") or 256)


TABLE = "embed_tokens_per_layer.weight"


def _first_of_sounds(files: Files) -> int:
    """Return the id of the first audio token: they are the last of the vocabulary."""
    return len(files.text[TOKENS]) - files.shape("mm.a.embedding.weight")[0]


def _first_of_images(files: Files) -> int:
    """Return the id of the first image token; they come before those of audio."""
    return _first_of_sounds(files) - files.shape("mm.embedding.weight")[0]


def _for_texts(files: Files, tensors: Tensors) -> Tensors:
    """Return the table of per-layer inputs without the rows of image and audio tokens, which use those of token 0."""
    known = np.arange(_first_of_images(files))
    return {name: take(each, known).renamed(name) if name.endswith(TABLE) else each for name, each in tensors.items()}


def _pieces(files: Files) -> int:
    """Return embeddings of an image."""
    return int(files.keys["vision.image_size"]) // int(files.keys["vision.patch_size"])


WRAPPER = Wrapper(
    "Gemma3nForConditionalGeneration",
    "gemma3n",
    texts=("gemma3n",),
    text_names={"model.": "model.language_model."},
    encoder_names={"": "model."},
    layers_alike=False,
    of_text_changed=_for_texts,
    config={
        "text.vocab_size_per_layer_input": _first_of_images,
        "vision.architecture": "mobilenetv5_300m_enc",
        "vision.do_pooling": False,
        "vision.vocab_size": rows("mm.embedding.weight"),
        "vision.vocab_offset": _first_of_images,
        "vision_soft_tokens_per_image": _pieces,
        "audio.vocab_size": rows("mm.a.embedding.weight"),
        "audio.vocab_offset": _first_of_sounds,
        "audio.sscp_conv_channel_size": lambda files: [files.shape(f"a.conv1d.{i}.weight")[0] for i in (0, 1)],
        "audio.conf_conv_kernel_size": lambda files: files.shape("a.blk.0.conv_dw.weight")[-1],
    },
    tokens={
        "image_token_id": ("<image_soft_token>",),
        "audio_token_id": ("<audio_soft_token>",),
        "boi_token_id": ("<start_of_image>",),
        "eoi_token_id": ("<end_of_image>",),
        "boa_token_id": ("<start_of_audio>",),
        "eoa_token_id": ("<end_of_audio>",),
    },
    processor="Gemma3nProcessor",
    image_processor="SiglipImageProcessorFast",
    feature_extractor="Gemma3nAudioFeatureExtractor",
    preprocessor={
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_normalize": False,
        "size": square(),
        "image_seq_length": _pieces,
        "feature_size": key("audio.num_mel_bins"),
    },
    tokenizer={
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "audio_token": "<audio_soft_token>",
        "boa_token": "<start_of_audio>",
        "eoa_token": "<end_of_audio>",
    },
)
GEMMA3N = Encoder(
    hf_classes=("Gemma3nForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": _side,
        "vision.patch_size": _patch,
        "vision.feed_forward_length": lambda config: 4 * int(config["vision"].get("intermediate_size") or 2048),
        "vision.block_count": always(128),  # meaningless: stages have blocks
        "vision.attention.head_count": maybe("vision.num_attention_heads", 8),
        "vision.image_mean": always([0.0, 0.0, 0.0]),
        "vision.image_std": always([1.0, 1.0, 1.0]),
        **AUDIO,
        "audio.feed_forward_length": maybe("audio.intermediate_size", 6144),
        "audio.block_count": "audio.conf_num_hidden_layers",
        "audio.attention.head_count": "audio.conf_num_attention_heads",
        "vision.projector_type": always("gemma3nv"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "audio.projector_type": always("gemma3na"),
        "audio.num_mel_bins": "audio.input_feat_size",
        "audio.attention.layer_norm_epsilon": always(1e-5),
    },
    parts={"vision": "vision_config", "audio": "audio_config"},
    defaults={
        "vision": {"hidden_size": 2048},
        "audio": {
            "hidden_size": 1536,
            "conf_num_hidden_layers": 12,
            "conf_num_attention_heads": 8,
            "input_feat_size": 128,
        },
    },
    tensors={
        **at(
            "vision_tower.timm_model.",
            "v.",
            {
                **{f"blocks.{{i}}.{{j}}.{name}": f"blk.{{i}}.{{j}}.{name}" for name in BLOCK},
                "blocks.{i}.{j}.layer_scale.gamma": TensorMap("blk.{i}.{j}.layer_scale.gamma"),
                "conv_stem.conv.weight": "conv_stem.conv.weight",
                "conv_stem.conv.bias": TensorMap("conv_stem.conv.bias", _over_images),
                "conv_stem.bn": "conv_stem.bn",
                **{
                    f"msfa.{name}": f"msfa.{name}"
                    for name in ("ffn.pw_exp.conv", "ffn.pw_exp.bn", "ffn.pw_proj.conv", "ffn.pw_proj.bn", "norm")
                },
            },
        ),
        **at("embed_vision.", "mm.", WORDS),
        **at("embed_audio.", "mm.a.", WORDS),
        **at("audio_tower.conformer.{i}.", "a.blk.{i}.", AUDIO_LAYER),
        **{f"audio_tower.subsample_conv_projection.conv_{i}.conv": f"a.conv1d.{i}" for i in (0, 1)},
        **{f"audio_tower.subsample_conv_projection.conv_{i}.norm": f"a.conv1d.{i}.norm" for i in (0, 1)},
        "audio_tower.subsample_conv_projection.input_proj_linear": "a.pre_encode.out",
    },
    fixed={
        "v.conv_stem.*": "F32",
        "a.conv1d.*": "F32",
        "a.blk.*.conv_dw.weight": "F32",
        "a.pre_encode.out.weight": "F16",
    },
    refused={key: other_than(usual) for key, usual in SOUNDS.items()},
    wrappers=(WRAPPER,),
)
