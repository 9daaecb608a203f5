"""Read WAV files of integer samples with the standard library."""

import io
import wave
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archs.bounded_files import SOUND, read_bytes
from quants.errors import FileError

RATE = 16_000
FRAMES_AT_ONCE = 1 << 20
UNKNOWN = 0xFFFFFFFF - 4096  # bytes or more: written by programs that do not know the length yet


def read_wav(file: str | Path, rate: int = RATE) -> NDArray[np.float32]:
    """Return the samples of a WAV file, float32 (samples,) in -1 … 1; the mean of its channels if it has several.

    Raises FileError for a file that is no WAV file, is cut short or empty, or has another sample format or rate.
    """
    path = Path(file)
    hint = f"make one with `ffmpeg -i {path.name} -ac 1 -ar {rate} -c:a pcm_s16le sound.wav`"
    try:
        content = read_bytes(path, SOUND)
    except OSError as error:
        raise FileError(f"{path} can't be read: {error.strerror}") from error
    try:
        with closing(wave.open(io.BytesIO(content), "rb")) as sound:
            channels, width, stored_rate, frames = sound.getparams()[:4]
            _check(path, width, stored_rate, rate, hint)
            frame = channels * width
            values = _samples(sound, min(frames, len(content) // frame))
    except (wave.Error, EOFError) as error:
        raise FileError(f"{path} is no WAV file of whole numbers: {error or 'it ends too early'}", hint) from error
    except (OSError, RuntimeError, ValueError, OverflowError) as error:  # of chunks that end beyond what there is
        raise FileError(f"{path} is no WAV file of whole numbers: its chunks don't fit into it", hint) from error
    if frame * len(values) < frame * frames < UNKNOWN:
        claim = f"its header has {frame * frames} bytes of samples, the file {frame * len(values)}"
        raise FileError(f"{path} is cut off: {claim}")
    if not values.size:
        raise FileError(f"{path} has no samples")
    return values


def _check(path: Path, width: int, stored_rate: int, rate: int, hint: str) -> None:
    if stored_rate != rate:
        raise FileError(f"{path} has {stored_rate} samples a second; {rate} were expected", hint)
    if width not in (1, 2, 3, 4):
        raise FileError(f"{path} has samples of {width} bytes; 1 to 4 were expected", hint)


def _samples(sound: wave.Wave_read, frames: int) -> NDArray[np.float32]:
    """Return the mean of the channels; read in pieces, as the integers take several times as much memory."""
    channels, width, parts = sound.getnchannels(), sound.getsampwidth(), []
    for start in range(0, frames, FRAMES_AT_ONCE):
        data = sound.readframes(min(FRAMES_AT_ONCE, frames - start))
        values = _whole_numbers(data[: len(data) // (channels * width) * channels * width], width)
        scaled = values.reshape(-1, channels).mean(axis=1) / 2.0 ** (8 * width - 1)
        parts.append(scaled.astype(np.float32))
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def _whole_numbers(data: bytes, width: int) -> NDArray[np.int64]:
    """Return little-endian samples of `width` bytes; those of one byte are offset by 128."""
    if width == 1:
        return np.frombuffer(data, np.uint8).astype(np.int64) - 128
    if width == 3:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3)
        padded = np.concatenate([np.zeros((len(parts), 1), np.uint8), parts], axis=1)
        return padded.view("<i4").reshape(-1).astype(np.int64) >> 8
    return np.frombuffer(data, f"<i{width}").astype(np.int64)
