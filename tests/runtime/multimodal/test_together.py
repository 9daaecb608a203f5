"""Logits of a text with an image and a sound are transformers' (tests/data/towers/*/together.npz)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from runtime.model import RunningModel
from runtime.multimodal.audio import AudioEncoder
from runtime.multimodal.places import Embedded, places
from runtime.multimodal.vision import VisionEncoder

from ...archs.checkpoints import ENCODERS, build_encoder, image, sound
from .test_vision import relative_error, text_model


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(ENCODERS.glob("*/together.npz"))])
def test_a_image_a_sound_and_a_text_give_the_logits_of_transformers(tmp_path: Path, name):
    build_encoder(name, tmp_path / name)
    gguftools.convert(tmp_path / name, tmp_path / "x.gguf", "f32", part="mmproj")
    truth = np.load(ENCODERS / name / "together.npz")
    with gguftools.open(tmp_path / "x.gguf") as file:
        seen = VisionEncoder(file.metadata, file.tensors).embedded(image(name, *map(int, truth["size"])))
        encoder = AudioEncoder(file.metadata, file.tensors)
        heard = Embedded(encoder.embeddings(sound(name, encoder.mels, int(truth["frames"]))))
    ids = truth["ids"]
    both = [*places(ids, 60, [seen]), *places(ids, 59, [heard])]
    assert len(both) == 2
    running = text_model(tmp_path / name)
    model = RunningModel(running.metadata, running.tensors, precision="exact")  # these are tokens enough for integers
    assert relative_error(model.forward(ids, images=both), truth["logits"]) < 1e-4
    cache = model.new_cache()
    model.forward(ids[:-1], cache, images=both)
    assert relative_error(model.forward(ids[-1:], cache), truth["logits"][-1:]) < 1e-4
