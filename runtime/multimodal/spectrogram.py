"""Log mel spectrograms of audio, as Whisper's feature extractor, Granite Speech's, NeMo's and MiMo's compute them.

Sources: transformers `models/{whisper,granite_speech,parakeet}/feature_extraction_*.py` and `audio_utils.py`; for MiMo
the numbers that its processor passes to torchaudio, and llama.cpp's `tools/mtmd/mtmd-audio.cpp`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from quants.errors import OptionError

from ..arrays import Doubles, Floats

RATE, HOP = 16_000, 160  # samples a second, and from frame to frame
WIDTH = 400  # samples of a frame
MIN_POWER, RANGE = 1e-10, 8.0  # the lowest power, and the dynamic range in powers of ten
FRAMES_AT_ONCE = 4096


@dataclass(frozen=True)
class Scale:
    """The frequency bands and their weights. transform: samples of the Fourier transform. rate: sample rate of the
    audio.
    """

    transform: int
    to_hertz: Callable[[Doubles], Doubles]
    highest: float
    by_width: bool
    rate: int = RATE

    def bank(self, mels: int) -> Doubles:
        """Return triangular filters, float64 (frequencies, mels)."""
        edges = self.to_hertz(np.linspace(0.0, self.highest, mels + 2))
        frequencies = np.linspace(0, self.rate / 2, self.transform // 2 + 1)
        slopes = edges - frequencies[:, None]
        below, above = -slopes[:, :-2] / np.diff(edges)[:-1], slopes[:, 2:] / np.diff(edges)[1:]
        triangles = np.maximum(0.0, np.minimum(below, above))
        return triangles * (2.0 / (edges[2:] - edges[:-2])) if self.by_width else triangles


def _slaney(mels: Doubles) -> Doubles:
    return np.where(mels < 15, 200 / 3 * mels, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))


def _htk(mels: Doubles) -> Doubles:
    return 700 * (10 ** (mels / 2595) - 1)


WHISPER = Scale(WIDTH, _slaney, 15 + np.log(8.0) * 27 / np.log(6.4), by_width=True)
HTK = Scale(512, _htk, 2595 * np.log10(1 + 8000 / 700), by_width=False)
MIMO = Scale(960, _htk, 2595 * np.log10(1 + 12_000 / 700), by_width=False, rate=24_000)
NEMO = Scale(512, _slaney, WHISPER.highest, by_width=True)
EMPHASIS, GUARD = 0.97, 2.0**-24
MIMO_HOP, MIMO_MIN_MAGNITUDE = 240, 1e-7
bank_of = cache(Scale.bank)


def as_waveform(waveform: ArrayLike, min_samples: int = 1, rate: int = RATE) -> Floats:
    """Return audio as float32 (samples,). Raises OptionError for another shape, too few samples and non-finite
    values.
    """
    samples = np.asarray(waveform, np.float32)
    if samples.ndim != 1 or not samples.size:
        raise OptionError(f"audio of shape {samples.shape}; (samples,) was expected", f"one channel, {rate} a second")
    if not np.isfinite(samples).all():
        raise OptionError("the audio's samples are not all finite numbers")
    if samples.size < min_samples:
        raise OptionError(f"a sound of {samples.size} samples; {min_samples} or more were expected")
    return samples


def log_mel(waveform: ArrayLike, mels: int, samples: int = 0, scale: Scale = WHISPER) -> Floats:
    """Return the log mel spectrogram of audio, float32 (mels, frames), a frame for each 160 samples.

    waveform: (samples,), 16,000 a second, between -1 and 1; padded with zeros up to `samples`. The last frame, which
    begins at the end, is left out. Raises OptionError for another shape, or audio too short for reflection padding.
    """
    sound = as_waveform(waveform)
    sound = np.pad(sound, (0, max(0, samples - len(sound))))
    edge = scale.transform // 2
    sound = np.pad(as_waveform(sound, edge + 1).astype(np.float64), edge, mode="reflect")
    window = np.zeros(scale.transform)
    start = (scale.transform - WIDTH) // 2
    window[start : start + WIDTH] = np.hanning(WIDTH + 1)[:-1]
    frames = np.lib.stride_tricks.sliding_window_view(sound, scale.transform)[::HOP]
    bank, parts = bank_of(scale, mels), []
    for at in range(0, len(frames), FRAMES_AT_ONCE):
        powers = np.abs(np.fft.rfft(frames[at : at + FRAMES_AT_ONCE] * window, axis=1)) ** 2
        parts.append(np.log10(np.maximum(powers @ bank, MIN_POWER)))
    logs = np.concatenate(parts)[: None if scale is HTK else -1]
    return np.ascontiguousarray(((np.maximum(logs, logs.max() - RANGE) + 4) / 4).T, np.float32)


def nemo(waveform: ArrayLike, mels: int) -> Floats:
    """Return the spectrogram of NeMo's models, float32 (mels, frames), normalized by band to mean 0 and deviation 1.

    Raises OptionError for audio of less than two frames.
    """
    sound = as_waveform(waveform, 2 * HOP).astype(np.float64)
    sharper = np.concatenate([sound[:1], sound[1:] - EMPHASIS * sound[:-1]])
    padded = np.pad(sharper, NEMO.transform // 2)
    window = np.zeros(NEMO.transform)
    start = (NEMO.transform - WIDTH) // 2
    window[start : start + WIDTH] = np.hanning(WIDTH)
    frames = np.lib.stride_tricks.sliding_window_view(padded, NEMO.transform)[::HOP][: len(sound) // HOP]
    powers = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    logs = np.log(powers @ bank_of(NEMO, mels) + GUARD)
    return np.ascontiguousarray(((logs - logs.mean(axis=0)) / (logs.std(axis=0, ddof=1) + 1e-5)).T, np.float32)


def mimo(waveform: ArrayLike, mels: int) -> Floats:
    """Return the spectrogram of MiMo's encoder, float32 (mels, frames): logarithms of magnitudes, a frame for each 240
    samples.

    waveform: (samples,), 24,000 a second. Raises OptionError as `log_mel` does.
    """
    edge = MIMO.transform // 2
    sound = np.pad(as_waveform(waveform, edge + 1, MIMO.rate).astype(np.float64), edge, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(sound, MIMO.transform)[::MIMO_HOP]
    window, bank, parts = np.hanning(MIMO.transform + 1)[:-1], bank_of(MIMO, mels), []
    for at in range(0, len(frames), FRAMES_AT_ONCE):
        magnitudes = np.abs(np.fft.rfft(frames[at : at + FRAMES_AT_ONCE] * window, axis=1))
        parts.append(np.log(np.maximum(magnitudes @ bank, MIMO_MIN_MAGNITUDE)))
    return np.ascontiguousarray(np.concatenate(parts).T, np.float32)


def in_frames(waveform: ArrayLike, samples: int) -> Floats:
    """Return the audio itself, (samples, frames), as Gemma 4 without layers reads it; padded with zeros."""
    sound = as_waveform(waveform)
    return np.ascontiguousarray(np.pad(sound, (0, -len(sound) % samples)).reshape(-1, samples).T)


def in_pairs(features: Floats) -> Floats:
    """Return neighbouring frames as one, (2 * mels, frames / 2), as Granite Speech reads them; an odd last one is left
    out.
    """
    mels, frames = features.shape
    return np.ascontiguousarray(features[:, : frames // 2 * 2].T.reshape(-1, 2 * mels).T)
