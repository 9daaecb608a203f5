"""Gemma 4's unified model: its text model is Gemma 4's, and files name the tokens that are never drawn."""

import json

from archs.config import normalized
from archs.plans.text import architecture_metadata
from archs.registry import of_config
from gguftools.models.sources import of_checkpoint

from .checkpoints import ENCODERS, build

UNIFIED = "Gemma4UnifiedForConditionalGeneration"


def test_keys_are_those_of_gemma_4_without_inputs_for_each_layer():
    config = json.loads((ENCODERS / "gemma4-unified" / "config.json").read_text(encoding="utf-8"))
    said = config["text_config"].pop("hidden_size_per_layer_input")
    family = of_config(config)
    found = architecture_metadata(family, normalized(config, family.defaults, family.keys))
    text = config["text_config"] | {"hidden_size_per_layer_input": said, "sliding_window": 1024}
    other = of_config({**text, "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"})
    assert (family.name, family.hf_classes) == (other.name, (UNIFIED,))
    assert found == architecture_metadata(other, normalized(text, other.defaults, other.keys))
    assert found["gemma4.embedding_length_per_layer_input"] == 0


def test_tokens_that_are_never_drawn_are_named(tmp_path):
    build("gemma4-moe", tmp_path / "x")
    path = tmp_path / "x" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    (tmp_path / "x" / "generation_config.json").write_text('{"suppress_tokens": [3, 5]}', encoding="utf-8")
    assert list(of_checkpoint(tmp_path / "x").metadata["tokenizer.ggml.suppress_tokens"]) == [3, 5]
    config["architectures"] = [UNIFIED]
    path.write_text(json.dumps(config), encoding="utf-8")
    assert list(of_checkpoint(tmp_path / "x").metadata["tokenizer.ggml.suppress_tokens"]) == [3, 5]
