"""Gemma 4's audio conformer, whose layers are nearly Gemma 3n's: frames look back a little way, with sinusoids of the
distance; convolutions do so, too.

Source: transformers `models/gemma4/modeling_gemma4.py` and `feature_extraction_gemma4.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import ops
from ..arrays import Floats
from ..mixers.attention import AttentionOptions, attend
from .conformer import HALF
from .convolution import convolved
from .layers import Weights
from .spectrogram import HOP, HTK, as_waveform, bank_of

# Constants that files lack; published models do not differ in them.
EPS, SOFTCAP = 1e-6, 50.0
DISTANCES = 13  # with an embedding
LONGEST = 10_000.0
FRAME, TRANSFORM, FLOOR = 320, 512, 1e-3  # samples of a frame, of the Fourier transform; the minimum magnitude
LONGEST_AUDIO = 480_000  # samples


@dataclass(frozen=True)
class Layers:
    """Differences between the layers of two models, besides their weights.

    seen: frames in each one's window. before, after: names of the norms around attention; end: of the last one;
    distances: of the matrix for distances. scales: factors of each value of a query, and of all keys.
    """

    seen: int
    before: str
    after: str
    end: str
    distances: str
    scales: Callable[[Weights, str], tuple[Floats, float]]

    def run(self, weights: Weights, heads: int, count: int, x: Floats, tell: Callable[[int, int], None]) -> Floats:
        """Return the layers' output for float32 (frames, width). tell(layers done, of how many)."""
        distances = _distances(x.shape[1])
        for i in range(count):
            tell(i, count)
            x = self._layer(weights, f"a.blk.{i}.", heads, x, distances)
        return x

    def _layer(self, weights: Weights, at: str, heads: int, x: Floats, distances: Floats) -> Floats:
        x = x + HALF * _net(weights, at, "", x)
        normed = weights.norm(f"{at}{self.before}", x, EPS, "rms")
        mixed = self._attention(weights, at, heads, normed, distances)
        x = x + weights.norm(f"{at}{self.after}", mixed, EPS, "rms")
        x = x + _convolved(weights, at, weights.norm(f"{at}conv_norm", x, EPS, "rms"))
        x = x + HALF * _net(weights, at, "_1", x)
        return weights.norm(f"{at}{self.end}", x, EPS, "rms")

    def _attention(self, weights: Weights, at: str, heads: int, x: Floats, distances: Floats) -> Floats:
        count = len(x)
        q, k, v = (weights.limited(f"{at}attn_{name}", x).reshape(count, heads, -1) for name in "qkv")
        of_queries, of_keys = self.scales(weights, at)
        q = q * (of_queries * np.float32(q.shape[2] ** -0.5 / math.log(2)))
        k = k * np.float32(of_keys)
        table = weights.project(f"{at}{self.distances}", distances).reshape(DISTANCES, heads, -1)
        scores = np.einsum("nhd,thd->hnt", q, table, optimize=True)
        bias = np.zeros((heads, count, count), np.float32)
        for distance in range(min(self.seen, count)):
            each = np.arange(distance, count)
            bias[:, each, each - distance] = scores[:, distance:, distance]
        options = AttentionOptions(window=self.seen, softcap=SOFTCAP, bias=bias)
        mixed = attend(q, k, v, np.arange(count), 1.0, options, threads=weights.threads)
        return weights.limited(f"{at}attn_out", mixed)


def _of_gemma4(weights: Weights, at: str) -> tuple[Floats, float]:
    return weights.values(f"{at}per_dim_scale.weight"), math.log(1 + math.e) / math.log(2)


LAYERS = Layers(12, "attn_pre_norm", "attn_post_norm", "ln2", "attn_k_rel", _of_gemma4)


def encoded(weights: Weights, heads: int, count: int, features: Floats, tell: Callable[[int, int], None]) -> Floats:
    """Return the encoder's output, float32 (tokens, width of the text model), a token for four frames of features
    (mels, n).

    tell(layers done, of how many).
    """
    x = LAYERS.run(weights, heads, count, _subsampled(weights, features), tell)
    x = weights.project("a.pre_encode.out", x)
    return weights.project("mm.a.input_projection", ops.rms_norm(x, None, EPS, weights.threads))


def _subsampled(weights: Weights, features: Floats) -> Floats:
    """Return two convolutions over squares, in steps of two either way, with a norm over channels after each."""
    x = features.T[None]  # (channels, frames, mels)
    for i in (0, 1):
        out = convolved(weights, f"a.conv1d.{i}", x, step=2, border=1).transpose(1, 2, 0)
        flat = np.ascontiguousarray(out).reshape(-1, out.shape[2])
        normed = weights.norm(f"a.conv1d.{i}.norm", flat, EPS, "layer")
        x = np.maximum(normed, 0).reshape(out.shape).transpose(2, 0, 1)
    frames = np.ascontiguousarray(x.transpose(1, 2, 0)).reshape(x.shape[1], -1)
    return weights.project("a.input_projection", frames)


def _distances(width: int) -> Floats:
    """Return sinusoids of growing wavelengths, of distances from 0 on: float32 (DISTANCES, width)."""
    half = width // 2
    rates = np.exp(np.arange(half) * (-math.log(LONGEST) / max(half - 1, 1)))
    angles = np.outer(np.arange(DISTANCES), rates)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _net(weights: Weights, at: str, which: str, x: Floats) -> Floats:
    up = weights.limited(f"{at}ffn_up{which}", weights.norm(f"{at}ffn_norm{which}", x, EPS, "rms"))
    down = weights.limited(f"{at}ffn_down{which}", ops.activated("silu", up, weights.threads))
    return weights.norm(f"{at}ffn_post_norm{which}", down, EPS, "rms")


def _convolved(weights: Weights, at: str, x: Floats) -> Floats:
    up, gate = np.split(weights.limited(f"{at}conv_pw1", x), 2, axis=1)
    x = up * ops.sigmoid(np.ascontiguousarray(gate), threads=weights.threads)
    kernel = weights.values(f"{at}conv_dw.weight").reshape(x.shape[1], -1)
    padded, out = np.pad(x, ((kernel.shape[1] - 1, 0), (0, 0))), np.zeros_like(x)
    for tap in range(kernel.shape[1]):
        out += padded[tap : tap + len(x)] * kernel[:, tap]
    out = ops.activated("silu", weights.norm(f"{at}norm_conv", out, EPS, "rms"), weights.threads)
    return weights.limited(f"{at}conv_pw2", out)


def spectrogram(waveform: Floats, mels: int) -> Floats:
    """Return the log mel spectrogram, float32 (mels, frames): of frames within the audio, the first centred on its
    beginning.

    Raises OptionError for audio without such a frame.
    """
    sound = np.pad(as_waveform(waveform, FRAME // 2 + 1).astype(np.float64), (FRAME // 2, 0))
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME + 1)[::HOP, :-1]
    window = np.hanning(FRAME + 1)[:-1].astype(np.float32)
    magnitudes = np.abs(np.fft.rfft(frames * window, n=TRANSFORM, axis=1))
    return np.ascontiguousarray(np.log(magnitudes @ bank_of(HTK, mels) + FLOOR).T, np.float32)
