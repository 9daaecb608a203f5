"""Qwen2.5-Omni: Qwen2.5-VL's encoder for images; Whisper's encoder for audio, with positions that are not learned.
Qwen3-Omni: Qwen3-VL's, and convolutions over squares of the spectrogram, the only encoder of Qwen3-ASR.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from quants import Tensor, from_array

from ..config import other_than
from ..encoder import AUDIO, VISION, Encoder, always, at, maybe
from ..spec import Config, Target, TensorMap
from ..transforms import Invertible, reshape
from ..wrapper import Files, Wrapper, rows
from .qwen_vl import PREPROCESSOR, QWEN3_VL, QWEN3_WRAPPER, QWEN25_VL, QWEN25_WRAPPER, by_layer, in_order
from .whisper import CONVOLUTIONS, ENCODER

POSITIONS, LONGEST = 1500, 10_000.0
SPEECH = "generates speech: a model of its own, which no program runs from such files"


def _positions(config: Config) -> Iterator[Tensor]:
    """Return sinusoidal positions, as Whisper's."""
    half = int(config["audio"]["d_model"]) // 2
    exponents = np.float32(-math.log(LONGEST) / (half - 1)) * np.arange(half, dtype=np.float32)
    rates = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = (np.arange(POSITIONS, dtype=np.float32)[:, None] * rates).astype(np.float64)
    values = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    yield from_array("a.position_embd.weight", values)


def _bounds(files: Files) -> Iterator[Tensor]:
    """Return the tokens around audio, which the model's own code does not use."""
    yield from_array("audio_tower.audio_bos_eos_token.weight", np.zeros((2, files.width), np.float32))


WHISPER = {"feature_size": lambda files: files.keys["audio.num_mel_bins"]}
WRAPPER = Wrapper(
    "Qwen2_5OmniForConditionalGeneration",
    "qwen2_5_omni",
    texts=("qwen2vl",),
    unused=("*.attn.qkv",),
    needed=QWEN25_WRAPPER.needed,
    inside="thinker_config",
    inside_type="qwen2_5_omni_thinker",
    text_names={"": "thinker."},
    encoder_names={"": "thinker."},
    made=_bounds,
    config={
        **{path: value for path, value in QWEN25_WRAPPER.config.items() if "tokens_per" not in path},
        "audio.n_window": 100,
        "audio.output_dim": rows("mm.a.fc.weight"),
        "audio.max_source_positions": POSITIONS,
        "enable_audio_output": False,
    },
    tokens={
        "thinker_config.audio_token_index": ("<|AUDIO|>",),
        "thinker_config.image_token_index": ("<|IMAGE|>",),
        "thinker_config.video_token_index": ("<|VIDEO|>",),
        "thinker_config.audio_start_token_id": ("<|audio_bos|>",),
        "thinker_config.audio_end_token_id": ("<|audio_eos|>",),
        "thinker_config.vision_start_token_id": ("<|vision_bos|>",),
        "thinker_config.vision_end_token_id": ("<|vision_eos|>",),
    },
    processor="Qwen2_5OmniProcessor",
    image_processor="Qwen2VLImageProcessor",
    feature_extractor="WhisperFeatureExtractor",
    preprocessor={**PREPROCESSOR, **WHISPER},
    tokenizer={
        "image_token": "<|IMAGE|>",
        "audio_token": "<|AUDIO|>",
        "video_token": "<|VIDEO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    },
)
QWEN25_OMNI = Encoder(
    hf_classes=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    metadata={
        **{
            key: source
            for key, source in QWEN25_VL.metadata.items()
            if "epsilon" not in key and "use_" not in key and key not in ("projector_type", "vision.n_wa_pattern")
        },
        **AUDIO,
        "audio.num_mel_bins": "audio.num_mel_bins",
        "audio.attention.layer_norm_epsilon": maybe("audio.layer_norm_eps", 1e-5),
        "projector_type": always("qwen2.5o"),
        "use_silu": always(True),
        "vision.n_wa_pattern": QWEN25_VL.metadata["vision.n_wa_pattern"],
        "vision.attention.layer_norm_epsilon": always(1e-6),
    },
    parts={"vision": "thinker_config.vision_config", "audio": "thinker_config.audio_config"},
    tensors={
        **QWEN25_VL.tensors,
        **{name: target for name, target in ENCODER.items() if "embed_positions" not in name},
        "audio_tower.ln_post": "a.post_ln",
        "audio_tower.proj": "mm.a.fc",
    },
    fixed=CONVOLUTIONS,
    ignored={
        "talker.*": SPEECH,
        "token2wav.*": SPEECH,
        "audio_tower.audio_bos_eos_token.*": "the model's own code does not use it",
    },
    generated=(_positions,),
    refused={**QWEN25_VL.refused, "audio.n_window": other_than(100)},
    wrappers=(WRAPPER,),
)


# a bias of a convolution over a spectrogram, one number for each channel, as (channels, 1, 1)
_over_squares = Invertible(
    lambda tensor, config: reshape(tensor, (tensor.size, 1, 1)), lambda tensor, config: reshape(tensor, (tensor.size,))
)


SQUARES: dict[str, Target] = {
    **{name: target for name, target in ENCODER.items() if ".layers." in name},
    **{f"audio_tower.conv2d{i}.weight": f"a.conv2d.{i}.weight" for i in (1, 2, 3)},
    **{f"audio_tower.conv2d{i}.bias": TensorMap(f"a.conv2d.{i}.bias", _over_squares) for i in (1, 2, 3)},
    "audio_tower.conv_out": "a.conv_out",
    "audio_tower.ln_post": "a.post_ln",
    "audio_tower.proj1": "mm.a.mlp.1",
    "audio_tower.proj2": "mm.a.mlp.2",
}
SQUARES_FIXED = {"a.conv2d.*.weight": "F16", "a.conv_out.weight": "F16"}
# Half the frames of an audio chunk, and the frames that attend to each other: hardcoded by programs.
PIECES: dict[str, Callable[[Any], bool]] = {"audio.n_window": other_than(50), "audio.n_window_infer": other_than(800)}
SOUND_TOKENS = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
HEARING: dict[str, Any] = {  # audio settings of config.json
    "audio.downsample_hidden_size": rows("a.conv2d.1.weight"),
    "audio.n_window": 50,
    "audio.n_window_infer": 800,
    "audio.output_dim": rows("mm.a.mlp.2.weight"),
    "audio.max_source_positions": POSITIONS,
}
QWEN3_OMNI = Encoder(
    hf_classes=("Qwen3OmniMoeForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": QWEN3_VL.metadata["vision.image_size"],
        **AUDIO,
        "audio.num_mel_bins": "audio.num_mel_bins",
        "audio.attention.layer_norm_epsilon": maybe("audio.layer_norm_eps", 1e-5),
        "use_gelu": always(True),
        "vision.spatial_merge_size": maybe("vision.spatial_merge_size"),
        "vision.attention.layer_norm_epsilon": always(1e-6),
        "vision.is_deepstack_layers": QWEN3_VL.metadata["vision.is_deepstack_layers"],
        "vision.projector_type": always("qwen3vl_merger"),
        "audio.projector_type": always("qwen3a"),
    },
    parts=QWEN25_OMNI.parts,
    tensors={
        **QWEN3_VL.tensors,
        **at("visual.deepstack_merger_list.{i}.", "v.deepstack.{i}.", {"ln_q": "norm", "mlp.0": "fc1", "mlp.2": "fc2"}),
        "visual.merger.ln_q": "v.post_ln",
        "visual.merger.mlp.{i}": "mm.{i}",
        **SQUARES,
    },
    fixed=SQUARES_FIXED,
    ignored={"talker.*": SPEECH, "code2wav.*": SPEECH},
    spellings={"visual.merger_list.": "visual.deepstack_merger_list."},
    generated=(_positions,),
    prepare=by_layer,
    prepare_export=in_order,
    refused=PIECES,
    wrappers=(
        replace(
            WRAPPER,
            hf_class="Qwen3OmniMoeForConditionalGeneration",
            model_type="qwen3_omni_moe",
            inside_type="qwen3_omni_moe_thinker",
            texts=("qwen3vlmoe",),
            unused=(),
            made=None,
            needed=QWEN3_WRAPPER.needed,
            encoder_names={"visual.deepstack_merger_list.": "thinker.visual.merger_list.", "": "thinker."},
            config={
                **{path: value for path, value in QWEN3_WRAPPER.config.items() if path.startswith(("vision", "text"))},
                **HEARING,
                "enable_audio_output": False,
            },
            tokens={
                "thinker_config.audio_token_id": ("<|audio_pad|>",),
                "thinker_config.image_token_id": ("<|image_pad|>",),
                "thinker_config.video_token_id": ("<|video_pad|>",),
                "thinker_config.audio_start_token_id": ("<|audio_start|>",),
                "thinker_config.vision_start_token_id": ("<|vision_start|>",),
            },
            processor="Qwen3OmniMoeProcessor",
            preprocessor={**QWEN3_WRAPPER.preprocessor, **WHISPER},
            tokenizer={
                "image_token": "<|image_pad|>",
                "video_token": "<|video_pad|>",
                "vision_bos_token": "<|vision_start|>",
                "vision_eos_token": "<|vision_end|>",
                **SOUND_TOKENS,
            },
        ),
    ),
)
QWEN3_ASR = Encoder(
    hf_classes=("Qwen3ASRForConditionalGeneration",),
    metadata={
        **AUDIO,
        "audio.num_mel_bins": "audio.num_mel_bins",
        "audio.attention.layer_norm_epsilon": maybe("audio.layer_norm_eps", 1e-5),
        "audio.projector_type": always("qwen3a"),
    },
    parts={"audio": "thinker_config.audio_config|audio_config"},  # the latter in checkpoints that transformers saved
    tensors={**SQUARES, "multi_modal_projector.linear_1": "mm.a.mlp.1", "multi_modal_projector.linear_2": "mm.a.mlp.2"},
    fixed=SQUARES_FIXED,
    generated=(_positions,),
    refused=PIECES,
    wrappers=(
        Wrapper(
            "Qwen3ASRForConditionalGeneration",
            "qwen3_asr",
            texts=("qwen3vl", "qwen3"),
            text_names={"model.": "model.language_model."},
            encoder_names={"": "model."},
            config={"text.model_type": "qwen3", "audio.model_type": "qwen3_asr_encoder", **HEARING},
            tokens={"audio_token_id": ("<|audio_pad|>",)},
            processor="Qwen3ASRProcessor",
            feature_extractor="Qwen3ASRFeatureExtractor",
            preprocessor=WHISPER,
            tokenizer=SOUND_TOKENS,
        ),
    ),
)
