"""Qwen2.5-Omni: Qwen2.5-VL's tower for pictures; Whisper's encoder for sounds, with positions that are not learned."""

import math
from collections.abc import Iterator

import numpy as np

from quants import Tensor, from_array

from ..spec import Config
from ..tower import AUDIO, Tower, always, maybe
from .qwen_vl import QWEN25_VL
from .whisper import CONVOLUTIONS, ENCODER

POSITIONS, LONGEST = 1500, 10_000.0
SPEECH = "speaks: a model of its own, which no program runs from such files"


def _positions(config: Config) -> Iterator[Tensor]:
    """Sines and cosines of waves that grow longer, as Whisper begins with."""
    half = int(config["audio"]["d_model"]) // 2
    exponents = np.float32(-math.log(LONGEST) / (half - 1)) * np.arange(half, dtype=np.float32)
    rates = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = (np.arange(POSITIONS, dtype=np.float32)[:, None] * rates).astype(np.float64)
    values = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    yield from_array("a.position_embd.weight", values)


QWEN25_OMNI = Tower(
    hf_classes=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    metadata={
        **{key: source for key, source in QWEN25_VL.metadata.items() if "epsilon" not in key and "use_" not in key
           and key not in ("projector_type", "vision.n_wa_pattern")},
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
        "audio_tower.ln_post": "a.post_ln", "audio_tower.proj": "mm.a.fc",
    },
    fixed=CONVOLUTIONS,
    ignored={
        "talker.*": SPEECH, "token2wav.*": SPEECH,
        "audio_tower.audio_bos_eos_token.*": "the model's own code does not use it",
    },
    generated=(_positions,),
    refused=QWEN25_VL.refused,
)  # fmt: skip
