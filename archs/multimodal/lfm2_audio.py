"""LFM2-Audio: FastConformer's encoder (NeMo's), and a net after it. The audio generator is left out."""

from quants import Tensor

from ..encoder import Encoder, always, at
from ..spec import Config, Target, TensorMap
from ..transforms import channels_and_taps, reshape
from .granite_speech import NORMS, folded

SPEECH = "generates audio from text, which no program reads from such files"


def _matrix(tensor: Tensor, config: Config) -> Tensor:
    """Return a convolution over one frame, (out, in, 1), as a matrix."""
    return reshape(tensor, tensor.shape[:2]) if tensor.shape[2:] == (1,) else tensor


def _over_squares(tensor: Tensor, config: Config) -> Tensor:
    """Return a bias of a convolution over a spectrogram, one number for each channel, as (channels, 1, 1)."""
    return reshape(tensor, (tensor.size, 1, 1))


LAYER: dict[str, Target] = {
    "norm_feed_forward1": "ffn_norm",
    "feed_forward1.linear1": "ffn_up",
    "feed_forward1.linear2": "ffn_down",
    "norm_feed_forward2": "ffn_norm_1",
    "feed_forward2.linear1": "ffn_up_1",
    "feed_forward2.linear2": "ffn_down_1",
    "norm_self_att": "ln1",
    "norm_out": "ln2",
    "norm_conv": "norm_conv",
    **{f"self_attn.linear_{name}": f"attn_{name}" for name in ("q", "k", "v", "out")},
    "self_attn.linear_pos": "linear_pos",
    "self_attn.pos_bias_u": "pos_bias_u",
    "self_attn.pos_bias_v": "pos_bias_v",
    "conv.pointwise_conv1": TensorMap("conv_pw1", _matrix),
    "conv.pointwise_conv2": TensorMap("conv_pw2", _matrix),
    "conv.depthwise_conv": TensorMap("conv_dw", channels_and_taps),
    "conv.batch_norm": "conv_norm",
}
LFM2_AUDIO = Encoder(
    hf_classes=("Lfm2AudioForConditionalGeneration",),
    metadata={
        "has_audio_encoder": always(True),
        "audio.projection_dim": "text.hidden_size",
        "audio.embedding_length": "audio.d_model",
        "audio.feed_forward_length": "audio.d_model",  # as llama.cpp writes it; tensors tell the true width
        "audio.block_count": "audio.n_layers",
        "audio.attention.head_count": "audio.n_heads",
        "projector_type": always("lfm2a"),
        "audio.num_mel_bins": "audio.feat_in",
        "audio.attention.layer_norm_epsilon": always(1e-5),
    },
    parts={"audio": "encoder"},
    tensors={
        "conformer.pre_encode.conv.{i}.weight": "a.conv1d.{i}.weight",
        "conformer.pre_encode.conv.{i}.bias": TensorMap("a.conv1d.{i}.bias", _over_squares),
        "conformer.pre_encode.out": "a.pre_encode.out",
        **at("conformer.layers.{i}.", "a.blk.{i}.", LAYER),
        "audio_adapter.model.{i}": "mm.a.mlp.{i}",
        "audio_embedding.embedding": "a.position_embd",
        "audio_embedding.embedding_norm": "a.position_embd_norm",
        "audio_embedding.to_logits": "a.embd_to_logits",
    },
    fixed={"a.blk.*.conv_*.weight": "F32", "a.conv1d.*.weight": "F32"},
    ignored={
        **NORMS,
        "codebook_offsets": SPEECH,
        "depth_embeddings.*": SPEECH,
        "depth_linear.*": SPEECH,
        "depthformer.*": SPEECH,
        "audio_loss_weight*": "for training alone",
    },
    claimed=("conformer.*", "audio_adapter.*", "audio_embedding.*", "codebook_offsets", "depth*", "audio_loss_weight*"),
    prepare=folded,
)
