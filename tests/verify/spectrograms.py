"""Record what transformers' feature extractors make of small sounds: tests/data/sounds/spectrograms.npz.

    python -m tests.verify.spectrograms

Of each some frames (`shown`). Granite Speech's extractor and MiMo's processor need torchaudio: their steps are done by
torch, with transformers' own bank of filters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.audio_utils import mel_filter_bank
from transformers.models.gemma3n.feature_extraction_gemma3n import Gemma3nAudioFeatureExtractor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.parakeet.feature_extraction_parakeet import ParakeetFeatureExtractor
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

from tests.archs.checkpoints import SOUNDS, shown, waveform


def granite(sound: np.ndarray) -> np.ndarray:
    stft = torch.stft(torch.from_numpy(sound), 512, 160, 400, torch.hann_window(400), center=True, return_complex=True)
    bank = torch.from_numpy(mel_filter_bank(257, 80, 0.0, 8000.0, 16000, norm=None, mel_scale="htk")).float()
    found = (bank.T @ stft.abs() ** 2).clip(min=1e-10).log10().T
    found = torch.maximum(found, found.max() - 8.0) / 4 + 1
    found = found[: len(found) // 2 * 2]
    return found.reshape(-1, 160).T.numpy()


def mimo(sound: np.ndarray) -> np.ndarray:
    """MelSpectrogram(24000, n_fft=960, hop_length=240, n_mels=128, power=1), and its logarithm from 1e-7 on.

    In float64: of float32 the logarithms of small magnitudes have three digits.
    """
    window = torch.hann_window(960, dtype=torch.float64)
    stft = torch.stft(torch.from_numpy(sound).double(), 960, 240, 960, window, center=True, return_complex=True)
    bank = torch.from_numpy(mel_filter_bank(481, 128, 0.0, 12_000.0, 24_000, norm=None, mel_scale="htk")).double()
    return (bank.T @ stft.abs()).clip(min=1e-7).log().float().numpy()


def main() -> None:
    sound = waveform()
    kept = {}
    for mels in (80, 128):
        extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
        kept[f"whisper{mels}"] = extractor(sound, sampling_rate=16000, return_tensors="np")["input_features"][0]
    extractor = Qwen3ASRFeatureExtractor(feature_size=128)
    kept["qwen3a"] = extractor(sound, sampling_rate=16000, padding=True, return_tensors="np")["input_features"][0]
    kept["granite"] = granite(sound)
    kept["mimo"] = mimo(sound)
    kept["nemo"] = ParakeetFeatureExtractor(feature_size=80)(sound, sampling_rate=16000)["input_features"][0].T.numpy()
    kept["gemma3n"] = Gemma3nAudioFeatureExtractor()([sound], return_tensors="np")["input_features"][0].T
    kept["gemma4"] = Gemma4AudioFeatureExtractor()([sound], return_tensors="np")["input_features"][0].T
    Path(SOUNDS).parent.mkdir(exist_ok=True)
    np.savez_compressed(SOUNDS, **{name: shown(values) for name, values in kept.items()})


if __name__ == "__main__":
    main()
