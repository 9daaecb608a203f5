"""Encoders for sounds give transformers' embeddings (tests/data/towers/*/embeddings.npz)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants import from_array
from quants.errors import ModelError, OptionError
from runtime.model import RunningModel
from runtime.multimodal.audio import AudioEncoder
from runtime.multimodal.gemma3n_audio import hard_words
from runtime.multimodal.layers import Weights
from runtime.multimodal.places import Embedded, places

from ...archs.checkpoints import build_encoder, recorded, sound, truth_of
from .test_vision import text_model

RUN = recorded("frames")
LESS_CLOSE = {"mimo-v2-5": 1e-4}  # what llama.cpp made of it
CLOSE = 2e-5  # of the standard deviation; a wrong activation or window makes 1e-3 and more


@pytest.fixture
def encoder(tmp_path: Path):
    def made(name: str, outtype: str = "f32") -> AudioEncoder:
        build_encoder(name, tmp_path / name)
        gguftools.convert(tmp_path / name, tmp_path / f"{name}.gguf", outtype, part="mmproj")
        model = gguftools.open(tmp_path / f"{name}.gguf")
        return AudioEncoder(model.metadata, model.tensors)

    return made


def heard(encoder: AudioEncoder, name: str, truth: np.lib.npyio.NpzFile) -> np.ndarray:
    frames, real = map(int, truth["frames"])
    return encoder.embeddings(sound(name, encoder.mels, frames), real)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    assert found.dtype == np.float32
    return float(np.abs(found - wanted).max() / wanted.std())


@pytest.mark.parametrize("name", RUN)
def test_embeddings_are_those_of_transformers(encoder, name):
    assert len(RUN) >= 6
    truth = truth_of(name, "frames")
    assert error(heard(encoder(name), name, truth), truth["embeddings"]) < LESS_CLOSE.get(name, CLOSE)


def test_a_quantized_encoder_is_near(encoder):
    truth = truth_of("voxtral", "frames")
    assert CLOSE < error(heard(encoder("voxtral", "q8_0"), "voxtral", truth), truth["embeddings"]) < 0.1


@pytest.mark.parametrize("name", [name for name in RUN if "ids" in truth_of(name, "frames")])
def test_a_sound_and_a_text_give_the_logits_of_transformers(encoder, tmp_path, name):
    truth = truth_of(name, "frames")
    made = encoder(name)
    ids, wanted = truth["ids"], truth["logits"]
    sounds = places(ids, int(ids[3]), [Embedded(heard(made, name, truth))])
    if name == "gemma3n":  # a word of the sounds' own stands behind
        sounds += hard_words(made.weights, ids, 340, sounds, int(ids[3]))
        assert [each.start for each in sounds] == [3, len(ids) - 2]
    model = text_model(tmp_path / name)
    if len(ids) > 100:  # tokens enough for integers
        model = RunningModel(model.metadata, model.tensors, precision="exact")
    logits = model.forward(ids, images=sounds)
    assert np.abs(logits - wanted).max() < 1e-4 * wanted.std()


def test_gemma_3n_hears_no_padding_and_no_more_than_a_prompt_has_tokens_for(encoder):
    made, features = encoder("gemma3n"), sound("gemma3n", 32, 301)
    louder = features.copy()
    louder[:, 291:] += 9  # ten frames behind the last one are seen by the convolutions
    np.testing.assert_array_equal(made.embeddings(louder, 281), made.embeddings(features, 281))
    with pytest.raises(OptionError, match="3009 frames; the encoder is for 3008"):
        made.embeddings(np.zeros((32, 3009)))


def test_padding_is_not_heard(encoder):
    made, features = encoder("qwen2-audio"), sound("qwen2-audio", 16, 48)
    louder = features.copy()
    louder[:, 39:] += 9  # the frame behind the last one is seen by the convolutions
    np.testing.assert_array_equal(made.embeddings(louder, 37), made.embeddings(features, 37))
    assert len(made.embeddings(features, 37)) == 9
    assert len(made.embeddings(features)) == 12


@pytest.mark.parametrize(
    ("shape", "frames", "wrong"),
    [
        ((16, 50), None, "50 frames; the encoder is for 48"),
        ((8, 48), None, r"\(16, frames\) was expected"),
        ((16, 0), None, r"\(16, frames\) was expected"),
        ((16, 48), 49, "49 frames of a spectrogram that has 48"),
        ((16, 48), 0, "0 frames of"),
    ],
)
def test_spectrograms_of_a_wrong_shape_are_refused(encoder, shape, frames, wrong):
    with pytest.raises(OptionError, match=wrong):
        encoder("qwen2-audio").embeddings(np.zeros(shape, np.float32), frames)


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("num_mel_bins", None, "no clip.audio.num_mel_bins"),
        ("block_count", 9, r"no tensor 'a\.blk\.3"),
        ("attention.head_count", 5, "do not fit each other"),
        ("projector.stack_factor", 0, "stack_factor is 0"),
        ("projector.stack_factor", 3, "do not fit each other"),
    ],
)
def test_files_that_lie_are_refused(encoder, key, value, wrong):
    made = encoder("voxtral")
    metadata = dict(made.metadata)
    metadata.pop(f"clip.audio.{key}")
    if value is not None:
        metadata[f"clip.audio.{key}"] = value
    with pytest.raises(ModelError, match=wrong):
        AudioEncoder(metadata, made.weights.tensors).embeddings(sound("voxtral", 16, 48))


def test_files_without_such_a_encoder_are_refused(encoder):
    made = encoder("voxtral")
    with pytest.raises(ModelError, match="'other' are not run"):
        AudioEncoder(dict(made.metadata) | {"clip.projector_type": "other"}, made.weights.tensors)
    with pytest.raises(ModelError, match="no audio encoder"):
        encoder("llava-1-5")


def test_layers_have_limits_of_what_goes_in_and_out():
    limits = {"input_min": -1, "input_max": 2, "output_min": -3, "output_max": 5}
    given = [from_array("a.weight", np.array([[3, 0], [0, -2]], np.float32))]
    given += [from_array(f"a.{name}", np.array([value], np.float32)) for name, value in limits.items()]
    weights = Weights({each.name: each for each in given})
    found = weights.limited("a", np.array([[9, -9], [1, 1]], np.float32))
    np.testing.assert_array_equal(found, [[5, 2], [3, -2]])
