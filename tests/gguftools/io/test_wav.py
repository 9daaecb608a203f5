"""Sounds are read from WAV files, and what is wrong with these is said."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from gguftools.io import wav
from gguftools.io.wav import read_wav
from quants.errors import FileError

SAMPLES = np.array([0, 1, -1, 100, -128, 127], np.int64)


def written(path: Path, width: int, channels: int = 1, rate: int = 16_000, samples: np.ndarray = SAMPLES) -> Path:
    scaled = samples * 256 ** (width - 1)
    data = b"".join(int(value + 128 * (width == 1)).to_bytes(width, "little", signed=width > 1) for value in scaled)
    with wave.open(str(path), "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", ""))
        sound.writeframes(data)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_each_width(tmp_path, width):
    found = read_wav(written(tmp_path / "a.wav", width))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (SAMPLES / 128).astype(np.float32))


def test_channels_become_their_mean(tmp_path):
    np.testing.assert_array_equal(read_wav(written(tmp_path / "a.wav", 2, channels=2)) * 128, [0.5, 49.5, -0.5])


def altered(path: Path, **changes: int) -> Path:
    """With other numbers in the header."""
    places = {"format": (20, "<H"), "bits": (34, "<H"), "length": (40, "<I")}
    content = bytearray(written(path, 2).read_bytes())
    for name, value in changes.items():
        struct.pack_into(places[name][1], content, places[name][0], value)
    path.write_bytes(content)
    return path


def test_a_length_that_was_not_known_is_what_there_is(tmp_path):
    assert len(read_wav(altered(tmp_path / "a.wav", length=0xFFFFFFFF))) == len(SAMPLES)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"length": 1 << 31}, "cut off: its header has 2147483648 bytes of samples, the file 12"),
        ({"length": 0}, "no samples"),
        ({"format": 3}, "no WAV file of whole numbers: unknown format: 3"),
        ({"bits": 64}, "samples of 8 bytes"),
    ],
)
def test_files_that_lie_are_refused(tmp_path, changes, wrong):
    with pytest.raises(FileError, match=wrong):
        read_wav(altered(tmp_path / "a.wav", **changes))


def test_what_is_no_such_file_is_said(tmp_path):
    with pytest.raises(FileError, match="8000 samples a second; 16000 were expected") as said:
        read_wav(written(tmp_path / "a.wav", 2, rate=8000))
    assert "ffmpeg -i a.wav" in str(said.value.hint)
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    for path, wrong in ((tmp_path / "b.wav", "no WAV file"), (tmp_path / "c.wav", "can't be read"), (tmp_path, "read")):
        with pytest.raises(FileError, match=wrong):
            read_wav(path)


@pytest.mark.parametrize("length", [1 << 31, (1 << 31) - 1, (1 << 32) - 1, 100])
def test_chunks_that_are_longer_than_the_file(tmp_path, length):
    whole = written(tmp_path / "a.wav", 2).read_bytes()
    (tmp_path / "a.wav").write_bytes(whole[:36] + b"LIST" + struct.pack("<I", length) + whole[36:])
    with pytest.raises(FileError, match=r"a\.wav is no WAV file of whole numbers") as said:
        read_wav(tmp_path / "a.wav")
    assert "ffmpeg" in str(said.value.hint)


def test_long_sounds_are_read_in_pieces(tmp_path, monkeypatch):
    samples = np.arange(-100, 100, dtype=np.int64)
    whole = read_wav(written(tmp_path / "a.wav", 2, channels=2, samples=samples))
    monkeypatch.setattr(wav, "FRAMES_AT_ONCE", 7)
    np.testing.assert_array_equal(read_wav(tmp_path / "a.wav"), whole)
