"""Audio encoders from mmproj files: a log mel spectrogram in, embeddings of the text model out. Each projector type is
a function here; sources: transformers `models/{qwen2_audio,voxtral,audioflamingo3,qwen2_5_omni,
qwen3_omni_moe,qwen3_asr,glmasr,granite_speech,parakeet}/modeling_*.py`, and the code published with Ultravox, GLM-ASR
and MERaLiON 2.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from archs.unsupported_encoders import absent_value, projector_type
from quants import Tensor
from quants.errors import ModelError, OptionError

from .. import ops
from ..arrays import Floats, Ids
from . import gemma3n_audio, gemma4_audio, mimo_audio
from .conformer import Conformer, InBlocks, Reader, WithBiases, subsampled
from .encoder import rotation
from .layers import Rotation, Vit, Weights, encoder_key, fitting
from .spectrogram import HOP, HTK, MIMO, RATE, WIDTH, as_waveform, in_frames, in_pairs, log_mel, mimo, nemo

# Constants missing in Qwen's files: the frames of an audio chunk, which is convolved separately and has positions of
# its own, and how many chunks attend to each other. All published checkpoints have these.
QWEN25_PIECE, QWEN25_SEEN = 200, 1
QWEN3_PIECE, QWEN3_SEEN = 100, 8
QWEN3_MIN_SAMPLES = 8000  # samples
ROPE_BASE = 10_000.0
PROJECTOR_EPS = 1e-6  # of Ultravox's norms
DOTS_PART = 60 * RATE  # samples that dots3-note reads at once
MIMO_PART = 6000  # frames that MiMo reads at once: `audio_segment_size` of its config
GEMMAS = {"gemma3na": ("Gemma 3n", gemma3n_audio.spectrogram), "gemma4a": ("Gemma 4", gemma4_audio.spectrogram)}
PIECES_AT_ONCE = 8  # of convolutions over squares, which need much memory


class AudioEncoder:
    """The audio encoder of an mmproj file.

    projector: its type, `clip.projector_type`. mels: bands of the spectrogram, or samples of frames.
    """

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], threads: int = 1) -> None:
        """Load the encoder. Raises ModelError for a file without one, or of an unsupported type."""
        projector = projector_type(metadata, "audio")
        if not metadata.get("clip.has_audio_encoder"):
            raise ModelError("the file has no audio encoder", "it is made by `gguftools convert MODEL --mmproj`")
        if projector not in RUN:
            raise ModelError(f"encoders of the type {projector!r} are not run", f"those that are: {', '.join(RUN)}")
        self.projector = str(projector)
        self._progress: Callable[[int, int], None] | None = None
        self.metadata, self.weights = metadata, Weights(tensors, threads)
        raw = projector == "gemma4ua"  # whose matrix reads samples
        self.mels = self.weights.need("mm.a.input_projection.weight").width if raw else int(self.key("num_mel_bins"))

    def key(self, name: str, otherwise: Any = None) -> Any:
        """Return a value of `clip.audio.NAME`, or its default. Raises ModelError if there is none."""
        absent = absent_value(self.projector, f"audio.{name}", self.metadata)
        return encoder_key(self.metadata, f"audio.{name}", otherwise if absent is None else absent)

    def embeddings(self, features: ArrayLike, frames: int | None = None) -> Floats:
        """Return embeddings of audio, float32 (tokens, width of the text model).

        features: float32 (mels, frames), the log mel spectrogram of the model's feature extractor. frames: how many of
        them are no padding; None: all. Raises OptionError for another shape, or more frames than the encoder supports.
        """
        values = np.asarray(features, np.float32)
        if values.ndim != 2 or values.shape[0] != self.mels or not values.shape[1]:
            raise OptionError(f"a spectrogram of shape {values.shape}; ({self.mels}, frames) was expected")
        real = values.shape[1] if frames is None else frames
        if not 0 < real <= values.shape[1]:
            raise OptionError(f"{real} frames of a spectrogram that has {values.shape[1]}")
        with fitting():
            return RUN[self.projector](self, self.weights, values, real)

    @property
    def width(self) -> int:
        """Return the width of an embedding for the text model."""
        return int(self.key("projection_dim"))

    @property
    def rate(self) -> int:
        """Return the audio's sample rate."""
        return MIMO.rate if self.projector == "mimo_audio" else RATE

    def embed_waveform(self, waveform: ArrayLike, progress: Callable[[int, int], None] | None = None) -> Floats:
        """Return embeddings of audio: of its chunks, one after the other, if the encoder reads chunks.

        waveform: float32 (samples,), `rate` a second, between -1 and 1. progress(layers done, of how many). Raises
        OptionError for another shape, or audio that is too long or too short for the encoder.
        """
        parts, embeddings = self.spectrograms(waveform), []
        for i, part in enumerate(parts):
            self._progress = partial(_tell, progress, i, len(parts)) if progress else None
            embeddings.append(self.embeddings(*part))
        self._progress = None
        return np.concatenate(embeddings)

    def tell(self, layer: int, layers: int) -> None:
        """Report progress: this many layers of a chunk are done."""
        if self._progress is not None:
            self._progress(layer, layers)

    def spectrograms(self, waveform: ArrayLike) -> list[tuple[Floats, int]]:
        """Return the arguments of `embeddings` for audio, by the models' own processors: the spectrogram of each chunk,
        and how many of its frames are no padding.
        """
        sound = as_waveform(waveform)
        if self.projector == "granite_speech":
            features = in_pairs(log_mel(sound, self.mels // 2, scale=HTK))
            return [(features, features.shape[1])]
        if self.projector == "lfm2a":
            features = nemo(sound, self.mels)
            return [(features, features.shape[1])]
        if self.projector in ("gemma3na", "gemma4a"):
            if len(sound) > gemma4_audio.LONGEST_AUDIO:
                problem = f"a sound of {len(sound) / RATE:.1f} seconds; {GEMMAS[self.projector][0]} hears 30 at once"
                raise OptionError(problem, "cut it into parts")
            features = GEMMAS[self.projector][1](sound, self.mels)
            return [(features, features.shape[1])]
        if self.projector == "gemma4ua":
            return [(in_frames(sound, self.mels), -(-len(sound) // self.mels))]
        if self.projector == "dots3note_a":
            parts = [sound[start : start + DOTS_PART] for start in range(0, len(sound), DOTS_PART)]
            return [_eighths(part, self.mels) for part in parts]
        if self.projector == "mimo_audio":
            whole = mimo(waveform, self.mels)
            parts = [whole[:, start : start + MIMO_PART] for start in range(0, whole.shape[1], MIMO_PART)]
            return [(np.ascontiguousarray(part), part.shape[1]) for part in parts]
        if self.projector == "qwen3a":
            sound = np.pad(sound, (0, max(0, QWEN3_MIN_SAMPLES - len(sound))))
            features = log_mel(sound, self.mels)
            frames = features.shape[1]
            return [(np.pad(features, ((0, 0), (0, -frames % QWEN3_PIECE))), frames)]
        frames = -(-len(sound) // HOP)
        if self.projector == "qwen2.5o":
            return [(log_mel(sound, self.mels, len(sound) + 2 * WIDTH)[:, :frames], frames)]
        max_frames = 2 * self.weights.need("a.position_embd.weight").shape[0]
        if self.projector == "qwen2a" and frames > max_frames:
            problem = (
                f"the sound takes {frames} frames; the encoder is for {max_frames}, {max_frames * HOP / RATE:g} seconds"
            )
            raise OptionError(problem, "cut it into parts")
        count = -(-frames // max_frames)
        if self.projector == "voxtral":  # silence is relative to the whole audio, not its chunk
            whole = log_mel(sound, self.mels, count * max_frames * HOP)
            return [(part, max_frames) for part in np.split(whole, count, axis=1)]
        parts = [sound[start : start + max_frames * HOP] for start in range(0, len(sound), max_frames * HOP)]
        return [(log_mel(part, self.mels, max_frames * HOP), -(-len(part) // HOP)) for part in parts]

    def layers(self, activation: str = "gelu", **more: Any) -> Vit:
        """Return the layers, as the file's keys say."""
        eps = float(self.key("attention.layer_norm_epsilon"))
        heads, count = int(self.key("attention.head_count")), int(self.key("block_count"))
        return Vit(heads, count, eps, activation, part="a", progress=self._progress, **more)


def _tell(progress: Callable[[int, int], None], part: int, parts: int, layer: int, layers: int) -> None:
    progress(part * layers + layer, parts * layers)


def _whisper(
    encoder: AudioEncoder, weights: Weights, features: Floats, frames: int | None, pooled: bool = False
) -> Floats:
    """Return the output of Whisper's encoder. frames: later ones are masked; None: none are."""
    x = _convolved(weights, features)
    table = weights.values("a.position_embd.weight").reshape(-1, x.shape[1])
    if len(x) > len(table):
        raise OptionError(
            f"{features.shape[1]} frames; the encoder is for {2 * len(table)}", "cut the audio into parts"
        )
    x = (x + table[: len(x)])[: None if frames is None else _halved(frames)]
    layers = encoder.layers()
    x = layers.run(weights, x)
    return weights.norm("a.post_ln", _pooled(x) if pooled else x, layers.eps, "layer")


def _convolved(weights: Weights, features: Floats) -> Floats:
    """Return two convolutions of three frames each, the second in steps of two: float32 (frames / 2, width)."""
    x = features.T
    for i in (1, 2):
        kernel = weights.values(f"a.conv1d.{i}.weight")
        padded = np.pad(x, ((1, 1), (0, 0)))
        around = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=0)[::i]
        product = around.reshape(len(around), -1) @ kernel.reshape(len(kernel), -1).T
        x = ops.activated("gelu", product + weights.values(f"a.conv1d.{i}.bias").reshape(-1), weights.threads)
    return np.ascontiguousarray(x)


def _halved(length: int) -> int:
    """Return the length after a convolution in steps of two."""
    return (length + 1) // 2


def _pooled(x: Floats) -> Floats:
    """Return means of neighbours; an odd last one is dropped."""
    pairs: Floats = x[: len(x) // 2 * 2].reshape(-1, 2, x.shape[1]).mean(axis=1)
    return pairs


def _stacked(x: Floats, factor: int) -> Floats:
    """Return `factor` neighbours as one, the last ones padded with zeros."""
    filled = np.pad(x, ((0, -len(x) % factor), (0, 0)))
    return filled.reshape(-1, factor * x.shape[1])


def _qwen2(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    return weights.project("mm.a.fc", _whisper(encoder, weights, features, frames, pooled=True))


def _flamingo(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    return _perceptron(weights, _whisper(encoder, weights, features, frames, pooled=True))


def _voxtral(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    x = _whisper(encoder, weights, features, None)  # silence after the audio is not masked
    return _perceptron(weights, _stacked(x, int(encoder.key("projector.stack_factor"))))


def _ultravox(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    x = _stacked(_whisper(encoder, weights, features, frames), int(encoder.key("projector.stack_factor")))
    x = weights.project("mm.a.mlp.1", weights.norm("mm.a.norm_pre", x, PROJECTOR_EPS, "rms"))
    up, gate = np.split(x, 2, axis=1)
    x = np.multiply(up, ops.activated("silu", np.ascontiguousarray(gate), weights.threads))
    return weights.project("mm.a.mlp.2", weights.norm("mm.a.norm_mid", x, PROJECTOR_EPS, "rms"))


def _meralion(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    x = weights.norm("mm.a.norm_pre", _whisper(encoder, weights, features, None), 1e-5, "layer")
    factor = int(encoder.key("projector.stack_factor"))
    x = weights.project("mm.a.mlp.0", _stacked(x[: len(x) // factor * factor], factor))
    x = ops.activated("silu", x, weights.threads)
    gate = ops.activated("silu", weights.project("mm.a.mlp.1", x), weights.threads)
    return weights.project("mm.a.mlp.3", np.multiply(gate, weights.project("mm.a.mlp.2", x), out=gate))


def _dots(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    x = _squares(weights, features[None].copy(), frames)[0][: -(-features.shape[1] // 8)]
    rotated = x.shape[1] // int(encoder.key("attention.head_count")) // 2
    vit = encoder.layers("silu", norm="rms", rotate=_rotation(len(x), rotated, "halves"))
    x = weights.norm("a.post_ln", vit.run(weights, x), vit.eps, "rms")
    x = weights.project("mm.a.mlp.1", weights.norm("mm.a.norm_pre", x, 1e-5, "layer"))
    return weights.project("mm.a.mlp.3", ops.activated("gelu", x, weights.threads))


def _eighths(sound: Floats, mels: int) -> tuple[Floats, int]:
    """Return a spectrogram of as many frames as its tokens have, and how many of them are complete."""
    frames = 8 * -(-len(sound) // (8 * HOP))
    return log_mel(sound, mels, DOTS_PART)[:, :frames], max(1, len(sound) // HOP)


def _mimo(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    vit = encoder.layers(reach=int(encoder.key("window_size", 1)))
    local, group = int(encoder.key("local_block_count")), int(encoder.key("local_group_size"))
    windowed, codes = ([int(each) for each in encoder.key(name)] for name in ("wa_pattern_mode", "rvq.codebook_size"))
    return mimo_audio.encoded(weights, vit, _convolved(weights, features[:, :frames]), windowed, codes, local, group)


def _gemma4_unified(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    x = np.ascontiguousarray(features[:, :frames].T)
    return weights.project("mm.a.input_projection", ops.rms_norm(x, None, 1e-6, weights.threads))


def _rotation(count: int, width: int, rope_type: str, base: float = ROPE_BASE) -> Rotation:
    """Return the rotation of `width` values of each head by frames."""
    angles = np.outer(np.arange(count), base ** -(np.arange(0, width, 2, dtype=np.float64) / width))
    return rotation(angles, rope_type)


def _glm(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    x = _convolved(weights, features)  # silence after the audio is not masked
    rotated = x.shape[1] // int(encoder.key("attention.head_count")) // 2  # rotating values of each head
    x = encoder.layers(rotate=_rotation(len(x), rotated, "adjacent")).run(weights, x)
    x = weights.norm("mm.a.norm_pre", x, 1e-5, "layer")
    factor = int(encoder.key("projector.stack_factor"))
    return _perceptron(weights, _stacked(x[: _halved(frames) // factor * factor], factor))


def _granite(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    eps, heads = float(encoder.key("attention.layer_norm_epsilon")), int(encoder.key("attention.head_count"))
    count, shown = int(encoder.key("block_count")), {int(each) for each in encoder.key("feature_layer")}
    conformer = Conformer(eps, InBlocks(heads, int(encoder.key("chunk_size")), int(encoder.key("max_pos_emb"))))
    x = weights.project("a.input_projection", np.ascontiguousarray(features[:, :frames].T))
    outputs = [x]
    for i in range(count):
        encoder.tell(i, count)
        x = conformer.layer(weights, f"a.blk.{i}.", x)
        if i + 1 == count // 2:
            x = x + weights.project("a.enc_ctc_out_mid", ops.softmax(weights.project("a.enc_ctc_out", x)))
        outputs.append(x)
    x = np.concatenate([*(each for i, each in enumerate(outputs) if i in shown), x], axis=1)
    return Reader(int(encoder.key("projector.head_count")), int(encoder.key("projector.window_size"))).run(weights, x)


def _lfm2(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    eps, heads = float(encoder.key("attention.layer_norm_epsilon")), int(encoder.key("attention.head_count"))
    conformer, count = Conformer(eps, WithBiases(heads)), int(encoder.key("block_count"))
    x = subsampled(weights, features[:, :frames])
    for i in range(count):
        encoder.tell(i, count)
        x = conformer.layer(weights, f"a.blk.{i}.", x)
    x = weights.project("mm.a.mlp.1", weights.norm("mm.a.mlp.0", x, eps, "layer"))
    return weights.project("mm.a.mlp.3", ops.activated("gelu", x, weights.threads))


def _gemma4(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    heads, count = int(encoder.key("attention.head_count")), int(encoder.key("block_count"))
    return gemma4_audio.encoded(weights, heads, count, features[:, :frames], encoder.tell)


def _gemma3n(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    heads, count = int(encoder.key("attention.head_count")), int(encoder.key("block_count"))
    return gemma3n_audio.encoded(weights, heads, count, features, frames, encoder.tell)


def _perceptron(weights: Weights, x: Floats) -> Floats:
    inner = ops.activated("gelu", weights.project("mm.a.mlp.1", x), weights.threads)
    return weights.project("mm.a.mlp.2", inner)


def _qwen25(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    pieces = [features[:, start : min(start + QWEN25_PIECE, frames)] for start in range(0, frames, QWEN25_PIECE)]
    x = np.concatenate([_positioned(weights, _convolved(weights, piece)) for piece in pieces])
    layers = encoder.layers(windows=_windows(len(x), QWEN25_PIECE // 2 * QWEN25_SEEN))
    x = weights.norm("a.post_ln", _pooled(layers.run(weights, x)), layers.eps, "layer")
    return weights.project("mm.a.fc", x)


def _qwen3(encoder: AudioEncoder, weights: Weights, features: Floats, frames: int) -> Floats:
    if encoder.metadata.get("clip.has_vision_encoder"):  # Omni pads with zeros, ASR with silence
        features = features[:, :frames]
    lengths = [min(QWEN3_PIECE, frames - start) for start in range(0, frames, QWEN3_PIECE)]
    padded = QWEN3_PIECE if len(lengths) > 1 else min(QWEN3_PIECE, features.shape[1])
    features = np.pad(features, ((0, 0), (0, max(0, padded * len(lengths) - features.shape[1]))))
    pieces = features[:, : padded * len(lengths)].reshape(len(features), len(lengths), padded).transpose(1, 0, 2)
    groups = [_squares(weights, pieces[i : i + PIECES_AT_ONCE]) for i in range(0, len(pieces), PIECES_AT_ONCE)]
    parts = (_positioned(weights, each) for group in groups for each in group)
    x = np.concatenate([part[: _eighth(length)] for part, length in zip(parts, lengths, strict=True)])
    layers = encoder.layers(windows=_windows(len(x), _eighth(padded) * QWEN3_SEEN))
    x = weights.norm("a.post_ln", layers.run(weights, x), layers.eps, "layer")
    return _perceptron(weights, x)


def _squares(weights: Weights, pieces: Floats, real: int | None = None) -> Floats:
    """Return three convolutions over squares of chunks of a spectrogram (pieces, mels, frames), in steps of two either
    way: float32 (pieces, frames / 8, width). real: frames after so many are zeroed before each of the convolutions.
    """
    x, kept = pieces[:, None], real
    for i in (1, 2, 3):
        if kept is not None:
            x[:, :, :, kept:], kept = 0, _halved(kept)
        kernel = weights.values(f"a.conv2d.{i}.weight")
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        around = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
        count, _, rows, columns = around.shape[:4]
        flat = around.transpose(0, 2, 3, 1, 4, 5).reshape(count * rows * columns, -1)
        product = flat @ kernel.reshape(len(kernel), -1).T + weights.values(f"a.conv2d.{i}.bias").reshape(-1)
        x = ops.activated("gelu", product, weights.threads).reshape(count, rows, columns, -1).transpose(0, 3, 1, 2)
    if kept is not None:
        x[:, :, :, kept:] = 0
    flat = x.transpose(0, 3, 1, 2).reshape(len(x) * x.shape[3], -1)  # of each frame all channels' bands
    return weights.project("a.conv_out", flat).reshape(len(x), x.shape[3], -1)


def _eighth(length: int) -> int:
    return _halved(_halved(_halved(length)))


def _positioned(weights: Weights, x: Floats) -> Floats:
    positioned: Floats = x + weights.values("a.position_embd.weight")[: len(x)]
    return positioned


def _windows(count: int, length: int) -> Callable[[int], list[Ids]]:
    """Return groups of neighbours that attend to each other."""
    windows = [np.arange(start, min(start + length, count)) for start in range(0, count, length)]
    return lambda layer: windows


RUN: dict[str, Callable[[AudioEncoder, Weights, Floats, int], Floats]] = {
    "qwen2a": _qwen2,
    "voxtral": _voxtral,
    "ultravox": _ultravox,
    "musicflamingo": _flamingo,
    "qwen2.5o": _qwen25,
    "qwen3a": _qwen3,
    "glma": _glm,
    "meralion": _meralion,
    "granite_speech": _granite,
    "gemma4a": _gemma4,
    "lfm2a": _lfm2,
    "dots3note_a": _dots,
    "mimo_audio": _mimo,
    "gemma4ua": _gemma4_unified,
    "gemma3na": _gemma3n,
}
