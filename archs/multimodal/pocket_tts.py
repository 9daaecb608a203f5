"""Pocket TTS: Mimi's encoder, which reads a voice sample, the flow net that generates audio latents, and Mimi's
decoder.

Published checkpoints have no config.json (see `archs/families/pocket_tts.py`); programs infer the best settings from
the folder's name.
"""

import re

from quants import Tensor

from ..encoder import Encoder, always, at
from ..spec import Config, Target, TensorMap, Tensors
from ..transforms import part, reshape

STAGES = 3  # of convolutions
CONVOLUTION = re.compile(r"(mimi\.(?:en|de)coder)\.model\.(\d+)\.(?:block\.(\d+)\.)?(?:.*\.)?(weight|bias)")


def _matrix(tensor: Tensor, config: Config) -> Tensor:
    """Return a convolution over one frame, (out, in, 1), as a matrix."""
    return reshape(tensor, tensor.shape[:2])


def convolutions(config: Config, tensors: Tensors) -> Tensors:
    """Return Mimi's convolutions by role; their numbers include modules without weights."""
    return {_named(name): tensor for name, tensor in tensors.items()}


def _named(name: str) -> str:
    if not (match := CONVOLUTION.fullmatch(name)):
        return name
    net, number, block, suffix = match[1], int(match[2]), match[3], match[4]
    if block is None and number in (0, 3 * STAGES + 2):
        return f"{net}.conv_{'out' if number else 'in'}.{suffix}"
    stage, place = divmod(number - 1, 3)
    if not 0 <= stage < STAGES:
        return name
    # of a stage: in the encoder a unit, an activation, and a downsampling; in the decoder this comes second
    first = 0 if net.endswith("encoder") else 2
    if block in ("1", "3") and place == first:
        return f"{net}.blk.{stage}.res_conv{1 if block == '1' else 2}.{suffix}"
    return f"{net}.blk.{stage}.scale_conv.{suffix}" if block is None and place == 2 - first // 2 else name


LAYER: dict[str, Target] = {
    "norm1": "ln1",
    "norm2": "ln2",
    "self_attn.out_proj": "attn_out",
    "linear1": "ffn_up",
    "linear2": "ffn_down",
    "self_attn.in_proj": tuple(TensorMap(f"attn_{name}", part(i, 3)) for i, name in enumerate("qkv")),
    "layer_scale_1.scale": "ls1.weight",
    "layer_scale_2.scale": "ls2.weight",
}
CONVOLUTIONS: dict[str, Target] = {
    name: name for name in ("conv_in", "conv_out", "blk.{i}.res_conv1", "blk.{i}.res_conv2", "blk.{i}.scale_conv")
}

POCKET_TTS = Encoder(
    hf_classes=("PocketTTSModel",),
    metadata={
        "has_audio_encoder": always(True),
        "audio.projector_type": always("pockettts_spkenc"),
        "audio.projection_dim": "text.hidden_size",
        "audio.block_count": "audio.num_hidden_layers",
        "audio.embedding_length": "audio.hidden_size",
        "audio.feed_forward_length": "audio.intermediate_size",
        "audio.attention.head_count": "audio.num_attention_heads",
        "audio.attention.layer_norm_epsilon": always(1e-5),
        "audio.num_mel_bins": always(1),  # it reads samples
        "has_gen_audio_encoder": always(True),
        "gen.audio.projector_type": always("pockettts_gen"),
        "gen.audio.projection_dim": "text.hidden_size",
        "gen.audio.embedding_length": "audio.hidden_size",
        "gen.audio.feed_forward_length": "audio.intermediate_size",
        "gen.audio.block_count": "audio.num_hidden_layers",
        "gen.audio.attention.head_count": "audio.num_attention_heads",
        "gen.audio.attention.layer_norm_epsilon": always(1e-5),
        "gen.audio.model_variant": "folder",
    },
    parts={"audio": "audio_config", "speech": "audio_config"},
    tensors={
        "flow_lm.speaker_proj_weight": "a.speaker_proj.weight",
        "flow_lm.input_linear": "a.gen.input_linear",
        "flow_lm.emb_mean": "a.gen.emb_mean",
        "flow_lm.emb_std": "a.gen.emb_std",
        "flow_lm.out_eos": "a.gen.out_eos",
        **at(
            "flow_lm.flow_net.",
            "a.gen.flow.",
            {
                "input_proj": "input_proj",
                "cond_embed": "cond_embd",
                "final_layer.linear": "final.proj",
                "final_layer.adaLN_modulation.{i}": "final.ada",
                **at(
                    "time_embed.{i}.",
                    "time.{i}.",
                    {"freqs": "freqs", "mlp.0": "up", "mlp.2": "down", "mlp.3.alpha": "norm"},
                ),
                **at(
                    "res_blocks.{i}.",
                    "blk.{i}.",
                    {"in_ln": "norm", "mlp.0": "up", "mlp.2": "down", "adaLN_modulation.1": "ada"},
                ),
            },
        ),
        "mimi.downsample.conv.conv": "a.downsample.conv",
        "mimi.upsample.convtr.convtr": "a.gen.wav.upsample",
        "mimi.quantizer.output_proj": TensorMap("a.gen.wav.quant_out", _matrix),
        **at("mimi.encoder_transformer.transformer.layers.{i}.", "a.blk.{i}.", LAYER),
        **at("mimi.decoder_transformer.transformer.layers.{i}.", "a.gen.wav.tfm.blk.{i}.", LAYER),
        **at("mimi.encoder.", "a.seanet.", CONVOLUTIONS),
        **at("mimi.decoder.", "a.gen.wav.seanet.", CONVOLUTIONS),
    },
    fixed={
        "a.seanet.*.weight": "F16",
        "a.gen.wav.seanet.*.weight": "F16",
        "a.downsample.conv.weight": "F16",
        "a.gen.wav.upsample.weight": "F16",
    },
    claimed=(
        "mimi.*",
        "flow_lm.flow_net.*",
        "flow_lm.speaker_proj_weight",
        "flow_lm.emb_mean",
        "flow_lm.emb_std",
        "flow_lm.out_eos.*",
    ),
    prepare=convolutions,
)
