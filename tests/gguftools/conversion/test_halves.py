"""Checkpoints of models with encoders that have one half: encoders alone, or the text model alone."""

import json
from pathlib import Path

import pytest

from archs.plans.mmproj import has_text
from gguftools.models.model import of_parts
from gguftools.models.sources import of_checkpoint, of_encoders
from quants.errors import ModelError
from tests.archs.checkpoints import ENCODERS, build_encoder, write_tensors

LARGER = {"qwen2-5-vl": {}, "gemma3": {"text_config"}, "ultravox": {"text_config"}}


def half(entry: str, folder: Path, text: bool) -> None:
    """The text model's tensors alone, or the encoders'; the vocabulary is larger than any of these."""
    build_encoder(entry, folder)
    rows = json.loads((ENCODERS / entry / "spec.json").read_text(encoding="utf-8"))["tensors"]
    write_tensors(folder / "model.safetensors", entry, [row for row in rows if has_text([row[0]]) == text])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for part in (config, *(config[key] for key in LARGER[entry])):
        part["vocab_size"] = 4000
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("entry", LARGER)
def test_encoders_alone_are_converted(entry: str, tmp_path: Path) -> None:
    build_encoder(entry, tmp_path / "whole" / entry)
    half(entry, tmp_path / "half" / entry, text=False)
    whole, alone = (of_parts(of_encoders(tmp_path / each / entry)) for each in ("whole", "half"))
    assert list(whole.tensors) == list(alone.tensors)
    assert {key: str(value) for key, value in whole.metadata.items()} == {
        key: str(value) for key, value in alone.metadata.items()
    }
    with pytest.raises(ModelError, match=r"all \d+ tensors are of encoders: the text model's are not there"):
        of_checkpoint(tmp_path / "half" / entry)


@pytest.mark.parametrize("entry", ["qwen2-5-vl", "gemma3"])
def test_a_text_model_alone_has_no_encoders(entry: str, tmp_path: Path) -> None:
    half(entry, tmp_path / entry, text=True)
    with pytest.raises(ModelError, match=r"none of the \d+ tensors belongs to an encoder"):
        of_encoders(tmp_path / entry)
