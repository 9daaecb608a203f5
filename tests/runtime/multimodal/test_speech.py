"""Codes of speech: logits as the published model's layers give them, at once and one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants.errors import ModelError, OptionError
from runtime.multimodal.speech import CodePredictor

from ...archs.checkpoints import ENCODERS, build_encoder

TRUTH = np.load(ENCODERS / "qwen3-tts" / "embeddings.npz")
CLOSE = 2e-5  # of the standard deviation


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    build_encoder("qwen3-tts", folder / "qwen3-tts")
    gguftools.convert(folder / "qwen3-tts", folder / "f32.gguf", "f32", part="mmproj")
    return folder / "f32.gguf"


@pytest.fixture
def predictor(file: Path) -> CodePredictor:
    model = gguftools.open(file)
    return CodePredictor(model.metadata, model.tensors)


def test_codes_follow_the_talkers_state(predictor):
    state, codes, wanted = TRUTH["state"], TRUTH["codes"].tolist(), TRUTH["code_logits"]
    assert (predictor.books, predictor.size, predictor.width) == (15, 64, 64)
    assert np.abs(predictor.logits(state, codes) - wanted).max() < CLOSE * wanted.std()
    given, kept = iter(codes[1:]), []

    def choose(logits):
        kept.append(logits)
        return next(given, 0)

    assert predictor.frame(state, codes[0], choose).tolist() == [*codes, 0]
    assert np.abs(np.stack(kept) - wanted).max() < CLOSE * wanted.std()


def test_the_likeliest_codes_are_those_of_their_logits(predictor):
    found = predictor.frame(TRUTH["state"], 3)
    assert predictor.logits(TRUTH["state"], found[:-1].tolist()).argmax(axis=1).tolist() == found[1:].tolist()
    rows = [predictor.embedding([*found[:i].tolist(), code]) for i, code in enumerate(found.tolist())]
    assert np.allclose(rows[-1], predictor.embedding(found.tolist()))
    assert not np.allclose(rows[-1], rows[-2])


def test_what_is_no_frame_is_refused(predictor):
    with pytest.raises(OptionError, match="code 64 of codebook 1, which has 64"):
        predictor.logits(TRUTH["state"], [0, 64])
    with pytest.raises(OptionError, match="a state of 3 values; the talker's have 64"):
        predictor.frame(np.zeros(3), 0)
    with pytest.raises(OptionError, match="17 codes; a frame has 16"):
        predictor.embedding([0] * 17)
    with pytest.raises(ModelError, match="nothing that gives codes of speech"):
        CodePredictor({}, {})
