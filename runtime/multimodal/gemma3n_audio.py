"""Gemma 3n's audio: the Universal Speech Model's conformer after two convolutions with cumulative norms; and "hard"
tokens for images and audio in the text, whose embeddings are in encoders' files.

Source: transformers `models/gemma3n/modeling_gemma3n.py`, `feature_extraction_gemma3n.py`, `processing_gemma3n.py`.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from quants.errors import OptionError

from .. import ops
from ..arrays import Doubles, Floats
from ..images import EmbeddedImage
from .convolution import convolved
from .gemma4_audio import EPS, Layers
from .layers import Weights
from .spectrogram import HOP, RATE, as_waveform

# Constants that files lack; published models do not differ in them.
NORM_EPS = 1e-3  # of norms after convolutions
HARD = ("gemma3nv", "gemma3na")  # types whose files have token embeddings
TOKENS, FEWER, REDUCED = 188, 4, 4  # tokens of audio; frames merged for the layers, and those merged to a token
FRAME, TRANSFORM, FLOOR = 512, 1024, 1e-5  # samples of a frame, of the Fourier transform; minimum magnitude
# Hertz; sample count that audio is padded to a multiple of
EMPHASIS, LOWEST, HIGHEST, ALIGNED = 0.97, 125.0, 7600.0, 128


def _scales(weights: Weights, at: str) -> tuple[Floats, float]:
    return np.logaddexp(weights.values(f"{at}per_dim_scale"), np.float32(0)), 1.0


LAYERS = Layers(13, "ln1", "ln2", "layer_pre_norm", "linear_pos", _scales)


def encoded(
    weights: Weights, heads: int, count: int, features: Floats, frames: int, tell: Callable[[int, int], None]
) -> Floats:
    """Return the encoder's output, float32 (188, width of the text model): as many tokens as audio has in prompts. One
    for 16 frames of features (mels, n), of which `frames` are no padding; later ones have the embedding of the last
    token.

    tell(layers done, of how many). Raises OptionError for more frames than that.
    """
    if frames > (max_frames := TOKENS * FEWER * REDUCED):
        raise OptionError(f"{frames} frames; the encoder is for {max_frames}", "cut the audio into parts")
    x = _subsampled(weights, features)[: -(-frames // FEWER)]  # later frames are masked
    x = LAYERS.run(weights, heads, count, x, tell)[::REDUCED]
    heard = _in_text(weights, "mm.a.", weights.norm("mm.a.soft_emb_norm", x, EPS, "rms"))
    nothing = hard(weights, "mm.a.", [-1])
    return np.concatenate([heard, np.repeat(nothing, max(0, TOKENS - len(heard)), axis=0)])


def hard(weights: Weights, at: str, rows: Sequence[int]) -> Floats:
    """Return embeddings of an encoder's hard tokens, float32 (rows, width of the text model). at: "mm." or "mm.a."."""
    x = weights.values(f"{at}embedding.weight")[list(rows)]
    return _in_text(weights, at, weights.norm(f"{at}hard_emb_norm", x, EPS, "rms"))


def hard_words(
    weights: Weights, ids: Sequence[int], words: int, images: Sequence[EmbeddedImage], soft: int
) -> list[EmbeddedImage]:
    """Return the embeddings in a text of the encoders' hard tokens, the last ones of `words` in the vocabulary: first
    those for images, then those for audio. images: embeddings already placed. soft: the token that stands for an image
    or audio, one of them; none in a vocabulary where it is another's.
    """
    if any(f"{at}embedding.weight" not in weights.tensors for at in ("mm.a.", "mm.")):
        return []  # files of other programs may lack them; the tokens are then the text model's
    taken = {place for each in images for place in range(each.start, each.stop)}
    more, end = [], words
    for at in ("mm.a.", "mm."):
        begin = end - len(weights.values(f"{at}embedding.weight"))
        own = [i for i, word in enumerate(ids) if begin <= word < end and i not in taken]
        embeddings = hard(weights, at, [ids[i] - begin for i in own]) if own else ()
        more += [EmbeddedImage(i, each[None]) for i, each in zip(own, embeddings, strict=True)]
        end = begin
    return more if end <= soft < words else []


def _in_text(weights: Weights, at: str, x: Floats) -> Floats:
    return ops.rms_norm(weights.project(f"{at}input_projection", x), None, EPS, weights.threads)


def _subsampled(weights: Weights, features: Floats) -> Floats:
    """Return two convolutions over squares, in steps of two either way, that see two later frames."""
    x = features.T[None]  # (channels, frames, mels)
    for i in (0, 1):
        out = convolved(weights, f"a.conv1d.{i}", np.pad(x, ((0, 0), (0, 2), (1, 1))), step=2).transpose(1, 2, 0)
        x = np.maximum(_normed(out) * weights.values(f"a.conv1d.{i}.norm.weight"), 0).transpose(2, 0, 1)
    frames = np.ascontiguousarray(x.transpose(1, 2, 0)).reshape(x.shape[1], -1)
    return weights.project("a.pre_encode.out", frames)


def _normed(x: Floats) -> Floats:
    """Return frames (n, bands, channels) normed by mean and variance of all values so far; each squared distance is
    from the running mean at that time.
    """
    counts = (x[0].size * np.arange(1, len(x) + 1))[:, None, None]
    means = np.cumsum(x.sum(axis=(1, 2), dtype=np.float64))[:, None, None] / counts
    centred = x - means.astype(np.float32)
    squares = np.cumsum(np.square(centred).sum(axis=(1, 2), dtype=np.float64))[:, None, None]
    normed: Floats = centred / np.sqrt(squares / counts + NORM_EPS).astype(np.float32)
    return normed


@cache
def _bank(mels: int) -> Doubles:
    """Return triangular filters, equally spaced in mels, float64 (frequencies, mels)."""
    lowest, highest = (2595 * np.log10(1 + hertz / 700) for hertz in (LOWEST, HIGHEST))
    edges = 700 * (10 ** (np.linspace(lowest, highest, mels + 2) / 2595) - 1)
    slopes = edges - np.linspace(0, RATE / 2, TRANSFORM // 2 + 1)[:, None]
    below, above = -slopes[:, :-2] / np.diff(edges)[:-1], slopes[:, 2:] / np.diff(edges)[1:]
    triangles: Doubles = np.maximum(0.0, np.minimum(below, above))
    return triangles


def spectrogram(waveform: Floats, mels: int) -> Floats:
    """Return the log mel spectrogram, float32 (mels, frames): of frames within the audio, padded with zeros.

    Raises OptionError for audio without such a frame.
    """
    sound = as_waveform(waveform, FRAME + 1)
    sound = np.pad(sound, (0, -len(sound) % ALIGNED))
    around = np.lib.stride_tricks.sliding_window_view(sound, FRAME + 1)[::HOP, :-1]
    first, rest = around[:, :1] * np.float32(1 - EMPHASIS), around[:, 1:] - np.float32(EMPHASIS) * around[:, :-1]
    frames = np.concatenate([first, rest], axis=1)  # float32, as the model's own: low bands consist of its rounding
    window = 0.5 * (1 - np.cos(2 * np.pi * np.arange(FRAME, dtype=np.float32) / FRAME))
    magnitudes = np.abs(np.fft.rfft(frames * window, n=TRANSFORM, axis=1))
    return np.ascontiguousarray(np.log(np.maximum(magnitudes @ _bank(mels), FLOOR)).T, np.float32)
