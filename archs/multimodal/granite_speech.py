"""Granite Speech: a conformer over frames, with attention within blocks, and a querying transformer (BLIP-2's) that
reads windows of its output. The Plus models also give it outputs of layers in between.
"""

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from quants import Tensor, from_array
from quants.errors import ModelError

from ..config import required
from ..encoder import Encoder, always, at, maybe
from ..hparams.config_keys import SIZE
from ..spec import Config, Floats, Target, TensorMap, Tensors
from ..transforms import Invertible, channels_and_taps, computed, part, reshape
from ..wrapper import Files, Wrapper, columns, head_width, rows

NORM_EPS = np.float32(1e-5)  # torch's default of batch norms


PARTS = ("weight", "bias", "running_mean", "running_var")


def folded(config: Config, tensors: Tensors) -> Tensors:
    """Fold the running means and variances of batch norms into their factors and summands.

    Both are placed where the last of a norm's tensors was.
    """
    named: dict[str, Tensor] = {}
    left = Counter(_norm(name) for name in tensors)
    for name, tensor in tensors.items():
        if not (norm := _norm(name)):
            named[name] = tensor
            continue
        left[norm] -= 1
        if not left[norm]:
            parts = [tensors[f"{norm}.{part}"] for part in PARTS if f"{norm}.{part}" in tensors]
            if len(parts) < len(PARTS):
                raise ModelError(f"{norm!r} lacks one of {', '.join(PARTS)}", "the checkpoint is incomplete")
            if len({each.shape for each in parts}) > 1:
                raise ModelError(f"the tensors of {norm!r} have different shapes")
            named |= zip((f"{norm}.weight", f"{norm}.bias"), _folded(*parts), strict=True)
    return named


def _norm(name: str) -> str:
    """Return the batch norm that a tensor belongs to, or ""."""
    return name.rpartition(".")[0] if ".batch_norm." in name else ""


def _folded(weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    def factors(values: Floats) -> Floats:
        scaled: Floats = values / np.sqrt(variance.float32() + NORM_EPS)
        return scaled

    def summands(values: Floats) -> Floats:
        return values - mean.float32() * factors(weight.float32())

    return computed(weight, factors), computed(bias, summands)


NORMS = {
    "*.batch_norm.num_batches_tracked": "counts steps of training",
    "*.batch_norm.running_*": "becomes part of the norm's weight and bias",
}


def unfolded(config: Config, tensors: Tensors) -> Tensors:
    """Unfold batch norms with zero means and neutral variances: the inverse of `folded`."""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        named[name] = tensor
        if (norm := _norm(name)) and name.endswith(".weight"):
            for part, value in (("running_mean", np.float32(0)), ("running_var", 1 - NORM_EPS)):
                named[f"{norm}.{part}"] = from_array(f"{norm}.{part}", np.full(tensor.shape, value, np.float32))
            counted = np.zeros((), np.int64)
            named[f"{norm}.num_batches_tracked"] = from_array(f"{norm}.num_batches_tracked", counted)
    return named


# a convolution over one frame, (out, in, 1), as a matrix
_matrix = Invertible(
    lambda tensor, config: reshape(tensor, tensor.shape[:2]) if tensor.shape[2:] == (1,) else tensor,
    lambda tensor, config: reshape(tensor, (*tensor.shape, 1)) if len(tensor.shape) == 2 else tensor,
)


def _inner_width(config: Config) -> int:
    return int(required(config, "audio.hidden_dim")) * int(required(config, "audio.feedforward_mult"))


LAYER: dict[str, Target] = {
    "ff1.pre_norm": "ffn_norm",
    "ff1.up_proj": "ffn_up",
    "ff1.down_proj": "ffn_down",
    "ff2.pre_norm": "ffn_norm_1",
    "ff2.up_proj": "ffn_up_1",
    "ff2.down_proj": "ffn_down_1",
    "attn.pre_norm": "ln1",
    "attn.to_q": "attn_q",
    "attn.to_out": "attn_out",
    "post_norm": "ln2",
    "attn.to_kv": (TensorMap("attn_k", part(0, 2)), TensorMap("attn_v", part(1, 2))),
    "attn.rel_pos_emb.weight": "attn_rel_pos_emb",
    "conv.norm": "norm_conv",
    "conv.batch_norm": "conv_norm",
    "conv.up_conv": TensorMap("conv_pw1", _matrix),
    "conv.down_conv": TensorMap("conv_pw2", _matrix),
    "conv.depth_conv.conv": TensorMap("conv_dw", channels_and_taps),
}
READER: dict[str, Target] = {
    **{f"attention.attention.{name}": f"self_attn_{name[0]}" for name in ("query", "key", "value")},
    "attention.output.dense": "self_attn_out",
    "attention.output.LayerNorm": "self_attn_norm",
    **{f"crossattention.attention.{name}": f"cross_attn_{name[0]}" for name in ("query", "key", "value")},
    "crossattention.output.dense": "cross_attn_out",
    "crossattention.output.LayerNorm": "cross_attn_norm",
    "intermediate_query.dense": "ffn_up",
    "output_query.dense": "ffn_down",
    "output_query.LayerNorm": "ffn_norm",
}


def _multiple(files: Files) -> float:
    return files.shape("a.blk.0.ffn_up.weight")[0] / int(files.keys["audio.embedding_length"])


def _readers(files: Files) -> int:
    """Return layers of the querying transformer."""
    matches = (re.match(r"a\.proj_blk\.(\d+)\.", name) for name in files.tensors)
    return max(int(match[1]) + 1 for match in matches if match)


WRAPPER = Wrapper(
    "GraniteSpeechForConditionalGeneration",
    "granite_speech",
    text_names={"": "language_model."},
    fits=lambda files: "audio.feature_layer" not in files.keys,
    biased=("a.enc_ctc_out", "a.enc_ctc_out_mid", "a.input_projection", "a.proj_linear", "a.proj_norm"),
    config={
        "audio.feedforward_mult": _multiple,
        "audio.dim_head": head_width("audio"),
        "audio.output_dim": rows("a.enc_ctc_out.weight"),
        "audio.conv_expansion_factor": 2,
        "has_lora_adapter": False,
        "projector_config.model_type": "blip_2_qformer",
        "projector_config.hidden_size": rows("a.proj_blk.0.self_attn_q.weight"),
        "projector_config.num_hidden_layers": _readers,
        "projector_config.cross_attention_frequency": 1,
        "projector_config.intermediate_size": rows("a.proj_blk.0.ffn_up.weight"),
        "projector_config.encoder_hidden_size": columns("a.proj_blk.0.cross_attn_k.weight"),
    },
    tokens={"audio_token_index": ("<|audio|>",)},
    processor="GraniteSpeechProcessor",
    feature_extractor="GraniteSpeechFeatureExtractor",
)
GRANITE_SPEECH = Encoder(
    hf_classes=("GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration"),
    metadata={
        "has_audio_encoder": always(True),
        "audio.projection_dim": "text.hidden_size",
        "audio.embedding_length": "audio.hidden_dim|audio.hidden_size",
        "audio.feed_forward_length": _inner_width,
        "audio.block_count": "audio.num_layers|audio.num_hidden_layers",
        "audio.attention.head_count": "audio.num_heads|audio.num_attention_heads",
        "projector_type": always("granite_speech"),
        "audio.num_mel_bins": "audio.input_dim|audio.num_mel_bins",
        "audio.attention.layer_norm_epsilon": always(1e-5),
        "audio.chunk_size": "audio.context_size",
        "audio.conv_kernel_size": "audio.conv_kernel_size",
        "audio.max_pos_emb": "audio.max_pos_emb",
        "audio.projector.window_size": "window_size",
        "audio.projector.downsample_rate": "downsample_rate",
        "audio.projector.head_count": "projector_config.num_attention_heads",
        "audio.feature_layer": maybe("audio.cat_hidden_layers"),
    },
    parts={"audio": "encoder_config"},
    defaults={
        "audio": {
            "input_dim": 160,
            "num_layers": 10,
            "hidden_dim": 1024,
            "feedforward_mult": 4,
            "num_heads": 8,
            "context_size": 200,
            "max_pos_emb": 512,
            "conv_kernel_size": 15,
        }
    },
    tensors={
        "encoder.input_linear": "a.input_projection",
        "encoder.out": "a.enc_ctc_out",
        "encoder.out_mid": "a.enc_ctc_out_mid",
        **at("encoder.layers.{i}.", "a.blk.{i}.", LAYER),
        "projector.query": "a.proj_query",
        "projector.linear": "a.proj_linear",
        "projector.qformer.layernorm": "a.proj_norm",
        **at("projector.qformer.encoder.layer.{i}.", "a.proj_blk.{i}.", READER),
    },
    fixed={"a.blk.*.conv_*.weight": "F32"},
    ignored={**NORMS, "encoder.attention_dists": "distances of frames, computed anew"},
    keys={"downsample_rate": SIZE},
    claimed=("encoder.*", "projector.*"),
    prepare=folded,
    prepare_export=unfolded,
    wrappers=(
        WRAPPER,
        replace(
            WRAPPER,
            hf_class="GraniteSpeechPlusForConditionalGeneration",
            model_type="granite_speech_plus",
            fits=lambda files: "audio.feature_layer" in files.keys,
        ),
    ),
)
