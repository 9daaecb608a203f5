"""MiniCPM-V before 4.6: its text model becomes what the family alone makes of that."""

import json
from pathlib import Path

import numpy as np
import pytest

from archs.config import normalized
from archs.plans.mmproj import without_encoders
from archs.plans.text import architecture_metadata, map_tensors
from archs.registry import of_config
from gguftools.io.checkpoint.safetensors import open_safetensors
from quants.errors import ModelError

from .checkpoints import ENCODERS, build_encoder


@pytest.mark.parametrize(
    ("version", "hf_class"), [(2.6, "Qwen2ForCausalLM"), ("2.5", "LlamaForCausalLM"), (4.0, "LlamaForCausalLM")]
)
def test_the_text_model_is_that_of_its_family(tmp_path, version, hf_class):
    build_encoder("minicpm-v-2-6", tmp_path / "x")
    config = json.loads(Path(tmp_path, "x", "config.json").read_text(encoding="utf-8")) | {"version": version}
    tensors = open_safetensors(tmp_path / "x" / "model.safetensors")
    text, encoders = without_encoders(config, tensors)
    assert len(encoders) > 20
    alone = {name.removeprefix("llm."): tensor for name, tensor in text.items()}
    ours, theirs = of_config(config), of_config({**config, "architectures": [hf_class]})
    found = map_tensors(ours, normalized(config, ours.defaults, ours.keys, text), text)
    wanted = map_tensors(theirs, normalized(config, theirs.defaults, theirs.keys, alone), alone)
    assert (ours.name, list(found.tensors)) == (theirs.name, list(wanted.tensors))
    for name, tensor in wanted.tensors.items():
        assert np.array_equal(found.tensors[name].raw(), tensor.raw())
    keys = [architecture_metadata(a, normalized(config, a.defaults, a.keys, text)) for a in (ours, theirs)]
    assert keys[0] == keys[1]


def test_versions_that_are_not_known_are_refused():
    config = json.loads((ENCODERS / "minicpm-v-2-6" / "config.json").read_text(encoding="utf-8"))
    assert of_config(config | {"version": 4.5}).name == "qwen3"
    with pytest.raises(ModelError, match=r"version 3\.0; of MiniCPMV and MiniCPMO 2\.5, 2\.6, 4\.0 and 4\.5"):
        of_config(config | {"version": 3.0})


def test_the_text_model_of_meralion_is_gemma_2(tmp_path):
    build_encoder("meralion2", tmp_path / "x")
    config = json.loads(Path(tmp_path, "x", "config.json").read_text(encoding="utf-8"))
    text, encoders = without_encoders(config, open_safetensors(tmp_path / "x" / "model.safetensors"))
    assert len(encoders) == 62
    alone = {name.removeprefix("text_decoder."): tensor for name, tensor in text.items()}
    ours, theirs = of_config(config), of_config({"architectures": ["Gemma2ForCausalLM"]})
    found = map_tensors(ours, normalized(config, ours.defaults, ours.keys, text), text)
    read = normalized(config["text_config"], theirs.defaults, theirs.keys, alone)
    wanted = map_tensors(theirs, read, alone)
    assert (ours.name, list(found.tensors)) == ("gemma2", list(wanted.tensors))
    for name, tensor in wanted.tensors.items():
        assert np.array_equal(found.tensors[name].raw(), tensor.raw())
    own = architecture_metadata(ours, normalized(config, ours.defaults, ours.keys, text))
    assert own == architecture_metadata(theirs, read)
