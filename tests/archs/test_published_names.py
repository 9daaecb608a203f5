"""What is done to a checkpoint's tensors before anything else, undone: their published names and values again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.config import ReadConfig
from archs.families import dots3
from archs.plans.export import plan_best, plan_export
from archs.registry import architectures
from gguftools.io.checkpoint.folder import open_checkpoint
from quants import from_array
from quants.errors import ModelError
from tests.archs import checkpoints

PRODUCTS = {"norm.weight", "proj.weight"}  # of which files have the products
OF_OTHERS = {  # of training, of the tokenizer, or under another name
    "architectures",
    "attention_dropout",
    "initializer_range",
    "dtype",
    "max_position_embeddings",
    "rope_parameters",
    "num_nextn_predict_layers",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


def test_dots3_has_its_further_layer_and_unscaled_norms_back() -> None:
    config = ReadConfig(
        num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"],
        hidden_size=8,
        q_lora_rank=3,
        kv_lora_rank=2,
        swa_kv_lora_rank=5,
    )
    norms = ("q_a_layernorm", "kv_a_layernorm", "kv_b_proj")
    names = [f"model.layers.{i}.self_attn.{each}.weight" for i in range(3) for each in norms]
    tensors = {name: from_array(name, np.array([0.3, -1.7], np.float32)) for name in [*names, f"model.{dots3.MTP}"]}
    found, prepared = dots3.prepare(config, tensors)
    assert "model.layers.1.self_attn.swa_kv_b_proj.weight" in prepared
    assert prepared[names[0]].float32()[0] == np.float32(0.3) * np.float32((8 / 3) ** 0.5)
    again = dots3.published(found, prepared)
    assert again.keys() == tensors.keys()
    assert all(np.allclose(again[name].float32(), tensors[name].float32(), rtol=1e-7, atol=0) for name in tensors)


@pytest.mark.parametrize(("entry", "left"), [("glm5-next", set()), ("muse-glimmer", set()), ("kimi-k3", PRODUCTS)])
def test_parts_of_models_with_encoders_are_written_with_them_alone(entry: str, left: set[str], tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "f32.gguf", "f32")
    model = gguftools.open(tmp_path / "f32.gguf")
    with pytest.raises(ModelError, match="text part of a model of images"):
        plan_export(model.metadata, dict(model.tensors))
    family = [each for each in architectures() if each.name == model.metadata["general.architecture"]]
    rebuilt = plan_best(family, model.metadata, dict(model.tensors), {})
    config, theirs = recorded(tmp_path / entry)
    said = config.keys() - OF_OTHERS
    assert {key: rebuilt.config.get(key) for key in said} == {key: config[key] for key in said}
    ours = {bare(name): tensor.float32() for name, tensor in rebuilt.tensors.items()}
    assert ours.keys() == theirs.keys()
    other = {name for name in ours if not np.allclose(ours[name], theirs[name], rtol=3e-7, atol=1e-7)}
    assert {name.rpartition("_res_")[0] and name.rpartition("_")[2] for name in other} == left


def recorded(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The text model's config, and its tensors without what stands before their names."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))["text_config"]
    tensors = open_checkpoint(folder).tensors
    return config, {bare(name): each.float32() for name, each in tensors.items() if "vision" not in name}


def bare(name: str) -> str:
    return name.removeprefix("language_model.").removeprefix("model.").removeprefix("language_model.")


SLOW = ("qrwkv6", "rwkv7", "talkie", "plamo2", "deci", "grok1")


@pytest.mark.parametrize("entry", ["rwkv6", "step3p5", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_tensors_come_back_as_published(entry: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "f32.gguf", "f32")
    model = gguftools.open(tmp_path / "f32.gguf")
    ours, theirs = plan_export(model.metadata, dict(model.tensors)).tensors, open_checkpoint(tmp_path / entry).tensors
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].shape == theirs[name].shape, name
        assert np.allclose(ours[name].float32(), theirs[name].float32(), rtol=3e-7, atol=1e-7), name
