"""Gemma 4: a ViT with norms around attention and nets for images, a conformer for audio (in some models), and a matrix
after each. Linear layers may have limits of their inputs and outputs, single numbers. The unified model has no
encoders, only matrices over pixels and samples.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from quants import Tensor

from ..config import other_than
from ..encoder import AUDIO, GATED_NET, QKV, VISION, Encoder, always, at, having, maybe
from ..spec import Config, Floats, Target, TensorMap
from ..transforms import Invertible, channels_and_taps, computed, patches_of_pixels, reshape, solved, take
from ..wrapper import Files, Wrapper, columns, has, head_width, key, rows

LIMITS = ("input_max", "input_min", "output_max", "output_min")


def _vector(tensor: Tensor, config: Config) -> Tensor:
    return reshape(tensor, (tensor.size,))


_as_vector = Invertible(_vector, lambda tensor, config: reshape(tensor, ()))  # single numbers


def _plus(x: Floats) -> Floats:
    return np.logaddexp(0, x.astype(np.float64)).astype(np.float32)


def _minus(x: Floats) -> Floats:
    """Return the number whose softplus it is, a BF16 one if possible: checkpoints store it so."""
    exact = np.log(np.expm1(x.astype(np.float64))).astype(np.float32)
    short = ((exact.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    return np.where(_plus(short) == x, short, solved(x, exact, _plus))


_softplus = Invertible(lambda tensor, config: computed(tensor, _plus), lambda tensor, config: computed(tensor, _minus))


def _limited(targets: dict[str, str]) -> dict[str, Target]:
    """Return linear layers with their limits."""
    rules: dict[str, Target] = {}
    for source, name in targets.items():
        rules[f"{source}.linear.weight"] = rules[f"{source}.weight"] = f"{name}.weight"
        rules |= {f"{source}.{limit}": TensorMap(f"{name}.{limit}", _as_vector) for limit in LIMITS}
    return rules


VISION_LAYER: dict[str, Target] = {
    "input_layernorm": "ln1",
    "pre_feedforward_layernorm": "ln2",
    "post_attention_layernorm": "attn_post_norm",
    "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "layer_scalar": TensorMap("out_scale.weight", _vector),
    **_limited({**QKV, "self_attn.o_proj": "attn_out", **GATED_NET}),
}
AUDIO_LAYER: dict[str, Target] = {
    "feed_forward1.pre_layer_norm": "ffn_norm",
    "feed_forward1.post_layer_norm": "ffn_post_norm",
    "feed_forward2.pre_layer_norm": "ffn_norm_1",
    "feed_forward2.post_layer_norm": "ffn_post_norm_1",
    "lconv1d.pre_layer_norm": "conv_norm",
    "lconv1d.conv_norm": "norm_conv",
    "norm_out": "ln2",
    "lconv1d.depthwise_conv1d": TensorMap("conv_dw", channels_and_taps),
    "norm_pre_attn": "attn_pre_norm",
    "norm_post_attn": "attn_post_norm",
    "self_attn.relative_k_proj": "attn_k_rel",
    "self_attn.per_dim_scale": TensorMap("per_dim_scale.weight", _softplus),
    **_limited(
        {
            **QKV,
            "self_attn.post": "attn_out",
            "lconv1d.linear_start": "conv_pw1",
            "lconv1d.linear_end": "conv_pw2",
            "feed_forward1.ffw_layer_1": "ffn_up",
            "feed_forward1.ffw_layer_2": "ffn_down",
            "feed_forward2.ffw_layer_1": "ffn_up_1",
            "feed_forward2.ffw_layer_2": "ffn_down_1",
        }
    ),
}
# How far frames look back, and their scale: hardcoded by programs.
SOUNDS: dict[str, Any] = {
    "attention_chunk_size": 12,
    "attention_context_left": 13,
    "attention_context_right": 0,
    "attention_logit_cap": 50.0,
    "residual_weight": 0.5,
}


def _seen_whole(files: Files) -> str | None:
    """Return whether an image's tokens attend to each other: in published models without per-layer inputs."""
    return None if files.of_text.get("embedding_length_per_layer_input") else "vision"


TOKENS = {
    "image_token_id": ("<|image|>",),
    "boi_token_id": ("<|image>",),
    "eoi_token_id": ("<image|>",),
    "audio_token_id": ("<|audio|>",),
    "boa_token_id": ("<|audio>",),
    "eoa_token_index": ("<audio|>",),
    "video_token_id": ("<|video|>",),
}
WRAPPER = Wrapper(
    "Gemma4ForConditionalGeneration",
    "gemma4",
    texts=("gemma4",),
    text_names={"model.": "model.language_model."},
    encoder_names={"": "model."},
    optional=("v.std_*",),
    unused=(
        "*.[qkvo]_proj.weight",
        "*.gate_proj.weight",
        "*.up_proj.weight",
        "*.down_proj.weight",
        "*.post.weight",
        "*.linear_start.weight",
        "*.linear_end.weight",
        "*.ffw_layer_[12].weight",
    ),
    config={
        "text.use_bidirectional_attention": _seen_whole,
        "vision.head_dim": head_width(),
        "vision.num_key_value_heads": key("vision.attention.head_count"),
        "vision.position_embedding_size": columns("v.position_embd.weight"),
        "vision.pooling_kernel_size": 3,
        "vision.use_clipped_linears": has("v.blk.0.attn_q.input_max"),
        "vision.standardize": has("v.std_bias"),
        "audio.output_proj_dims": rows("a.pre_encode.out.weight"),
        "audio.conv_kernel_size": lambda files: files.shape("a.blk.0.conv_dw.weight")[-1],
        "audio.subsampling_conv_channels": lambda files: [files.shape(f"a.conv1d.{i}.weight")[0] for i in (0, 1)],
        "audio.use_clipped_linears": has("a.blk.0.attn_q.input_max"),
        **{f"audio.{name}": value for name, value in SOUNDS.items()},
    },
    tokens=TOKENS,
    processor="Gemma4Processor",
    image_processor="Gemma4ImageProcessor",
    feature_extractor="Gemma4AudioFeatureExtractor",
    preprocessor={"patch_size": key("vision.patch_size"), "pooling_kernel_size": 3},
    tokenizer={
        "image_token": "<|image|>",
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "audio_token": "<|audio|>",
        "boa_token": "<|audio>",
        "eoa_token": "<audio|>",
    },
)
GEMMA4 = Encoder(
    hf_classes=("Gemma4ForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": always(224),  # of any size; programs want one
        **having("audio", AUDIO | {"audio.feed_forward_length": lambda config: 4 * config["audio"]["hidden_size"]}),
        "vision.projector_type": always("gemma4v"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        **having(
            "audio",
            {
                "audio.projector_type": always("gemma4a"),
                "audio.num_mel_bins": maybe("audio.input_feat_size", 128),
                "audio.attention.layer_norm_epsilon": maybe("audio.layer_norm_eps", 1e-6),
            },
        ),
    },
    parts={"vision": "vision_config", "audio": "audio_config"},
    tensors={
        **at("vision_tower.encoder.layers.{i}.", "v.blk.{i}.", VISION_LAYER),
        "vision_tower.patch_embedder.input_proj.weight": TensorMap("v.patch_embd.weight", patches_of_pixels),
        "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
        "vision_tower.std_bias": "v.std_bias",
        "vision_tower.std_scale": "v.std_scale",
        "embed_vision.embedding_projection": "mm.input_projection",
        **at("audio_tower.layers.{i}.", "a.blk.{i}.", AUDIO_LAYER),
        **at(
            "audio_tower.subsample_conv_projection.",
            "a.",
            {
                "layer0.conv": "conv1d.0",
                "layer0.norm": "conv1d.0.norm",
                "layer1.conv": "conv1d.1",
                "layer1.norm": "conv1d.1.norm",
                "input_proj_linear": "input_projection",
            },
        ),
        "audio_tower.output_proj": "a.pre_encode.out",
        "embed_audio.embedding_projection": "mm.a.input_projection",
    },
    refused={f"audio.{key}": other_than(usual) for key, usual in SOUNDS.items()},
    fixed={"a.conv1d.*": "F32", "a.input_projection.weight": "F32", "a.blk.*.conv_dw.weight": "F32"},
    wrappers=(WRAPPER,),
)


def _by_colours(tensor: Tensor, config: Config) -> Tensor:
    width = tensor.width
    convolution = patches_of_pixels(reshape(tensor, (tensor.size // width, width)), config)
    return reshape(convolution, tensor.shape)


def _by_pixels(tensor: Tensor, config: Config) -> Tensor:
    side, width = math.isqrt(tensor.width // 3), tensor.width
    convolution = reshape(tensor, (tensor.size // width, 3, side, side))
    return reshape(patches_of_pixels.invert(convolution, config), tensor.shape)


# pixels of a patch stored by rows, reordered by colours: of a matrix's columns or a vector
_as_it_was = Invertible(_by_colours, _by_pixels)


def _turned(tensor: Tensor, config: Config) -> Tensor:
    """Return the tensor with the first two of three dimensions exchanged."""
    places, axes, width = tensor.shape
    order = np.arange(places * axes).reshape(places, axes).T.reshape(-1)
    return reshape(take(reshape(tensor, (places * axes, width)), order), (axes, places, width))


_by_axis = Invertible(_turned, _turned)  # positions, (places, axes, width), with the axes first


NOTHING = ("feed_forward_length", "block_count", "attention.head_count")  # keys of encoders without layers
GEMMA4_UNIFIED = Encoder(
    hf_classes=("Gemma4UnifiedForConditionalGeneration",),
    metadata={
        **GEMMA4.metadata,
        "vision.embedding_length": "vision.mm_embed_dim",
        **{f"vision.{key}": always(0) for key in NOTHING},
        **having(
            "audio",
            {
                "audio.embedding_length": "audio.audio_embed_dim",
                **{f"audio.{key}": always(0) for key in NOTHING},
                "audio.projector_type": always("gemma4ua"),
            },
        ),
        "vision.projector_type": always("gemma4uv"),
    },
    parts=GEMMA4.parts,
    claimed=("vision_embedder.*",),
    defaults={"vision": {"patch_size": 16, "mm_embed_dim": 3840}, "audio": {"audio_embed_dim": 640}},
    tensors={
        **at(
            "vision_embedder.",
            "v.",
            {
                "patch_ln1.weight": TensorMap("patch_norm.1.weight", _as_it_was),
                "patch_ln1.bias": TensorMap("patch_norm.1.bias", _as_it_was),
                "patch_dense.weight": TensorMap("patch_embd.weight", _as_it_was),
                "patch_dense.bias": "patch_embd.bias",
                "patch_ln2": "patch_norm.2",
                "pos_embedding": TensorMap("position_embd.weight", _by_axis),
                "pos_norm": "patch_norm.3",
            },
        ),
        "embed_vision.embedding_projection": "mm.input_projection",
        "embed_audio.embedding_projection": "mm.a.input_projection",
    },
    wrappers=(
        replace(
            WRAPPER,
            hf_class="Gemma4UnifiedForConditionalGeneration",
            model_type="gemma4_unified",
            unused=(),
            config={
                "text.use_bidirectional_attention": _seen_whole,
                "vision.mm_posemb_size": columns("v.position_embd.weight"),
                "vision.pooling_kernel_size": 3,
                "vision.output_proj_dims": columns("mm.input_projection.weight"),
            },
            processor="Gemma4UnifiedProcessor",
            image_processor="Gemma4UnifiedImageProcessor",
            feature_extractor="Gemma4UnifiedAudioFeatureExtractor",
        ),
    ),
)
