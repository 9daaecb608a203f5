"""Whisper's encoder before Qwen2-Audio, Voxtral, Ultravox, GLM-ASR and MERaLiON: two convolutions over a spectrogram,
learned positions (GLM-ASR rotates instead), layers without a bias of k, and a projector.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from quants import Tensor, from_array

from ..encoder import AUDIO, WHISPER_ATTENTION, Encoder, always, at, maybe
from ..spec import Config, Index, Target, TensorMap, Transform
from ..transforms import Order, chain, column, flat_row, reordered, reshape, share, take
from ..wrapper import Wrapper, rows

LAYER: dict[str, Target] = {**WHISPER_ATTENTION, "fc1": "ffn_up", "fc2": "ffn_down"}
ENCODER: dict[str, Target] = {
    **{f"audio_tower.conv{i}.weight": f"a.conv1d.{i}.weight" for i in (1, 2)},
    **{f"audio_tower.conv{i}.bias": TensorMap(f"a.conv1d.{i}.bias", column) for i in (1, 2)},
    **at("audio_tower.layers.{i}.", "a.blk.{i}.", LAYER),
    "audio_tower.embed_positions": "a.position_embd",
    "audio_tower.layer_norm": "a.post_ln",
}
CONVOLUTIONS = {"a.conv1d.*.weight": "F16"}
PARTS = {"audio": "audio_config"}
POSITIONS = 1500


def _row(number: int) -> Transform:
    """Return one row of a matrix, as a vector."""

    def row(tensor: Tensor, config: Config) -> Tensor:
        return reshape(take(tensor, np.array([number])), (tensor.shape[-1],))

    return row


def _pairs(rows: int, config: Config) -> Index:
    """Return rows of q and k from rotating halves to rotating adjacent pairs."""
    heads = int(config["audio"]["num_attention_heads"])
    width = rows // heads
    turned = np.arange(width // 2).reshape(2, -1).T.reshape(-1)
    each = np.concatenate([turned, np.arange(width // 2, width)])
    index: Index = (np.arange(heads)[:, None] * width + each).reshape(-1)
    return index


ROTATED = reordered(_pairs)


def _token(which: str) -> Order:
    return lambda rows, config: np.array([config["tokens"][which]])


def _no_positions(config: Config) -> Iterator[Tensor]:
    """Return zeros for learned positions, which programs require and this model does not use."""
    width = int(config["audio"]["hidden_size"])
    yield from_array("a.position_embd.weight", np.zeros((POSITIONS, width), np.float32))


WRAPPER = Wrapper(
    "Qwen2AudioForConditionalGeneration",
    "qwen2_audio",
    text_names={"": "language_model."},
    biased=("a.conv1d.1", "a.conv1d.2", "a.post_ln", "mm.a.fc"),
    config={"audio.model_type": "qwen2_audio_encoder", "audio.max_source_positions": rows("a.position_embd.weight")},
    tokens={"audio_token_index": ("<|AUDIO|>",)},
    processor="Qwen2AudioProcessor",
    feature_extractor="WhisperFeatureExtractor",
    preprocessor={"feature_size": lambda files: files.keys["audio.num_mel_bins"]},
)
QWEN2_AUDIO = Encoder(
    hf_classes=("Qwen2AudioForConditionalGeneration",),
    metadata={
        **AUDIO,
        "projector_type": always("qwen2a"),
        "audio.num_mel_bins": "audio.num_mel_bins",
        "audio.attention.layer_norm_epsilon": maybe("audio.layer_norm_eps", 1e-5),
    },
    parts=PARTS,
    defaults={
        "audio": {
            "num_mel_bins": 128,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "d_model": 1280,
        }
    },
    tensors={**ENCODER, "multi_modal_projector.linear": "mm.a.fc"},
    fixed=CONVOLUTIONS,
    wrappers=(WRAPPER,),
)
VOXTRAL = Encoder(
    hf_classes=("VoxtralForConditionalGeneration",),
    metadata={**QWEN2_AUDIO.metadata, "projector_type": always("voxtral"), "audio.projector.stack_factor": always(4)},
    parts=PARTS,
    defaults={
        "audio": {
            "num_mel_bins": 128,
            "num_hidden_layers": 32,
            "num_attention_heads": 20,
            "intermediate_size": 5120,
            "hidden_size": 1280,
        }
    },
    tensors={**ENCODER, "multi_modal_projector.linear_1": "mm.a.mlp.1", "multi_modal_projector.linear_2": "mm.a.mlp.2"},
    fixed=CONVOLUTIONS,
    wrappers=(
        replace(
            WRAPPER,
            hf_class="VoxtralForConditionalGeneration",
            model_type="voxtral",
            config={**WRAPPER.config, "audio.model_type": "voxtral_encoder"},
            tokens={"audio_token_id": ("[AUDIO]",)},
            processor="VoxtralProcessor",
        ),
    ),
)
AUDIO_FLAMINGO = Encoder(
    hf_classes=("AudioFlamingo3ForConditionalGeneration",),
    metadata={**QWEN2_AUDIO.metadata, "projector_type": always("musicflamingo")},
    parts=PARTS,
    defaults=VOXTRAL.defaults,
    tensors=VOXTRAL.tensors,
    fixed={"a.conv1d.*.weight": "F32"},
    wrappers=(
        replace(
            WRAPPER,
            hf_class="AudioFlamingo3ForConditionalGeneration",
            model_type="audioflamingo3",
            config={**WRAPPER.config, "audio.model_type": "audioflamingo3_encoder"},
            tokens={"audio_token_id": ("<sound>",)},
            processor="AudioFlamingo3Processor",
        ),
    ),
)
ULTRAVOX = Encoder(
    hf_classes=("UltravoxModel",),
    metadata={
        **QWEN2_AUDIO.metadata,
        "projector_type": always("ultravox"),
        "audio.projector.stack_factor": "stack_factor",
    },
    parts=PARTS,
    tensors={
        **VOXTRAL.tensors,
        "multi_modal_projector.ln_pre": "mm.a.norm_pre",
        "multi_modal_projector.ln_mid": "mm.a.norm_mid",
    },
    fixed=CONVOLUTIONS,
    wrappers=(
        replace(
            WRAPPER,
            hf_class="UltravoxModel",
            model_type="ultravox",
            biased=("a.conv1d.1", "a.conv1d.2", "a.post_ln"),
            config={
                "audio.model_type": "whisper",
                "audio.max_source_positions": rows("a.position_embd.weight"),
                "projector_act": "swiglu",
                "projector_ln_mid": True,
                "hidden_size": rows("mm.a.mlp.1.weight"),
            },
            tokens={},
            processor="UltravoxProcessor",
        ),
    ),
)
GLM_ASR = Encoder(
    hf_classes=("GlmasrModel",),
    metadata={**QWEN2_AUDIO.metadata, "projector_type": always("glma"), "audio.projector.stack_factor": "merge_factor"},
    parts={"audio": "whisper_config"},
    tensors={
        **ENCODER,
        "audio_encoder.layer_norm": "mm.a.norm_pre",
        "multi_modal_projector.linear_1": "mm.a.mlp.1",
        "multi_modal_projector.linear_2": "mm.a.mlp.2",
        "audio_encoder.audio_bos_eos_token.weight": (TensorMap("v.boi", _row(0)), TensorMap("v.eoi", _row(1))),
    },
    fixed=CONVOLUTIONS,
    ignored={"audio_encoder.proj.*": "the model's own code does not use it"},
    spellings={
        "audio_encoder.whisper.": "audio_tower.",
        "audio_encoder.adapting.0.": "multi_modal_projector.linear_1.",
        "audio_encoder.adapting.2.": "multi_modal_projector.linear_2.",
    },
    refused={"use_rope": lambda rotates: rotates is False},
    claimed=("audio_encoder.*",),
)
GLM_ASR_OF_TRANSFORMERS = Encoder(  # the same model as saved by transformers, which llama.cpp's converter refuses
    hf_classes=("GlmAsrForConditionalGeneration",),
    metadata={**GLM_ASR.metadata, "audio.projector.stack_factor": always(4)},
    parts=PARTS,
    defaults={"audio": VOXTRAL.defaults["audio"]},
    tensors={
        **{name: target for name, target in ENCODER.items() if ".conv" in name},
        **at(
            "audio_tower.layers.{i}.",
            "a.blk.{i}.",
            {
                "input_layernorm": "ln1",
                "post_attention_layernorm": "ln2",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
                "self_attn.q_proj": TensorMap("attn_q", ROTATED),
                "self_attn.k_proj": TensorMap("attn_k", ROTATED),
                "self_attn.v_proj": "attn_v",
                "self_attn.o_proj": "attn_out",
            },
        ),
        "audio_tower.norm": "mm.a.norm_pre",
        "multi_modal_projector.linear_1": "mm.a.mlp.1",
        "multi_modal_projector.linear_2": "mm.a.mlp.2",
        "language_model.embed_tokens.weight": (
            TensorMap("v.boi", chain(share(_token("begin")), flat_row)),
            TensorMap("v.eoi", chain(share(_token("end")), flat_row)),
        ),
    },
    fixed=CONVOLUTIONS,
    spellings={"language_model.model.": "language_model."},
    tokens={"begin": "<|begin_of_audio|>", "end": "<|end_of_audio|>"},
    generated=(_no_positions,),
    wrappers=(
        replace(
            WRAPPER,
            hf_class="GlmAsrForConditionalGeneration",
            model_type="glmasr",
            of_text=("v.boi", "v.eoi"),
            config={
                "audio.model_type": "glmasr_encoder",
                "projector_hidden_act": "gelu",
                "audio.max_position_embeddings": rows("a.position_embd.weight"),
            },
            tokens={"audio_token_id": ("<|pad|>",)},
            processor="GlmAsrProcessor",
        ),
    ),
)
MERALION = Encoder(
    hf_classes=("MERaLiON2ForConditionalGeneration",),
    metadata={
        **QWEN2_AUDIO.metadata,
        "projector_type": always("meralion"),
        "audio.projector.stack_factor": maybe("speech_mlp_scale_factor", 15),
    },
    parts={"audio": "speech_config"},
    tensors={
        **ENCODER,
        "ln_speech": "mm.a.norm_pre",
        "speech_audio_adapter.mlp_adapter.{i}": "mm.a.mlp.{i}",
        "speech_audio_adapter.gate_proj": "mm.a.mlp.1",
        "speech_audio_adapter.pool_proj": "mm.a.mlp.2",
        "speech_audio_adapter.out_proj": "mm.a.mlp.3",
    },
    fixed=CONVOLUTIONS,
    spellings={"speech_encoder.": "audio_tower."},
    claimed=("speech_encoder.*", "speech_audio_adapter.*", "ln_speech.*"),
)
