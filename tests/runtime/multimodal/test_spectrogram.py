"""Spectrograms are those of transformers' feature extractors (tests/data/sounds), and those that encoders read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants.errors import OptionError
from runtime.multimodal import gemma3n_audio, gemma4_audio
from runtime.multimodal.audio import AudioEncoder
from runtime.multimodal.spectrogram import FRAMES_AT_ONCE, HTK, in_pairs, log_mel, mimo, nemo

from ...archs.checkpoints import SOUNDS, build_encoder, shown, waveform

TRUTH = np.load(SOUNDS)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("whisper80", lambda sound: log_mel(sound, 80, 480_000)),
        ("whisper128", lambda sound: log_mel(sound, 128, 480_000)),
        ("qwen3a", lambda sound: np.pad(log_mel(sound, 128), ((0, 0), (0, 92)))),
        ("granite", lambda sound: in_pairs(log_mel(sound, 80, scale=HTK))),
        ("nemo", lambda sound: np.pad(nemo(sound, 80), ((0, 0), (0, 1)))),
        ("mimo", lambda sound: mimo(sound, 128)),
        ("gemma3n", lambda sound: gemma3n_audio.spectrogram(sound, 128)),
        ("gemma4", lambda sound: gemma4_audio.spectrogram(sound, 128)),
    ],
)
def test_spectrograms_are_those_of_transformers(name, made):
    found = shown(made(waveform()))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, TRUTH[name], rtol=0, atol=1e-4)


def test_long_sounds_are_the_same_in_parts():
    sound = np.tile(waveform(), 40)
    whole = log_mel(sound, 16)
    assert whole.shape == (16, len(sound) // 160)
    assert whole.shape[1] > FRAMES_AT_ONCE
    np.testing.assert_allclose(whole[:, 60:100], log_mel(sound[: 17_333 * 3], 16)[:, 60:100], atol=1e-6)


@pytest.mark.parametrize(
    ("sound", "wrong"),
    [
        (np.zeros((2, 500)), r"shape \(2, 500\)"),
        (np.zeros(0), r"shape \(0,\)"),
        (np.zeros(200), "of 200 samples"),
        (np.full(500, np.nan), "not all finite"),
    ],
)
def test_what_is_no_sound_is_refused(sound, wrong):
    with pytest.raises(OptionError, match=wrong):
        log_mel(sound, 80)


@pytest.fixture
def encoder(tmp_path: Path):
    def made(name: str) -> AudioEncoder:
        build_encoder(name, tmp_path / name)
        gguftools.convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32", part="mmproj")
        model = gguftools.open(tmp_path / f"{name}.gguf")
        return AudioEncoder(model.metadata, model.tensors)

    return made


@pytest.mark.parametrize(
    ("name", "frames"),
    [  # of 17,333 samples: encoders for 48 frames (50: MERaLiON) take them in parts
        ("audio-flamingo3", [(48, 48), (48, 48), (48, 13)]),
        ("voxtral", [(48, 48)] * 3),
        ("ultravox", [(48, 48), (48, 48), (48, 13)]),
        ("meralion2", [(50, 50), (50, 50), (50, 9)]),
        ("qwen2-5-omni", [(109, 109)]),
        ("qwen3-asr", [(200, 108)]),
        ("granite-speech", [(54, 54)]),
        ("gemma4", [(108, 108)]),
        ("gemma3n", [(106, 106)]),
        ("lfm2-audio", [(108, 108)]),
        ("gemma4-unified", [(271, 271)]),
        ("dots3-note", [(112, 108)]),
        ("mimo-v2-5", [(73, 73)]),
    ],
)
def test_encoders_are_given_the_parts_that_they_are_for(encoder, name, frames):
    made = encoder(name)
    parts = made.spectrograms(waveform())
    assert [(features.shape[1], real) for features, real in parts] == frames
    assert all(features.shape[0] == made.mels and features.dtype == np.float32 for features, _ in parts)
    wanted = np.concatenate([made.embeddings(*part) for part in parts])
    np.testing.assert_array_equal(made.embed_waveform(waveform()), wanted)


def test_mimo_hears_a_minute_at_once(encoder):
    made = encoder("mimo-v2-5")
    assert made.rate == 24_000
    parts = made.spectrograms(np.tile(waveform(), 90))  # 65 seconds
    assert [frames for _, frames in parts] == [6000, 500]
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts], axis=1)[:, :70], parts[0][0][:, :70])
    with pytest.raises(OptionError, match="of 480 samples; 481 or more"):
        made.spectrograms(waveform()[:480])


def test_a_sound_too_long_is_refused(encoder):
    made = encoder("qwen2-audio")
    assert len(made.embed_waveform(waveform()[:7000])) == 11
    with pytest.raises(OptionError, match="takes 109 frames; the encoder is for 48"):
        made.embed_waveform(waveform())
