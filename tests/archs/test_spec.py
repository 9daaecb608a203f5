"""Architectures that say what is different from another."""

from __future__ import annotations

import pytest

from archs.spec import Architecture, LayerSpec, TensorMap, in_layers

BASE = Architecture(
    "base",
    ("BaseForCausalLM",),
    metadata={"a": "a", "b": "b"},
    defaults={"model_type": "its_own", "c": 1},
    refused={"d": True},
    block=LayerSpec(norm="layer", gated=False),
)


def test_mappings_and_block_are_merged() -> None:
    derived = BASE.derive(metadata={"c": "c", "a": None}, refused={"e": True}, block={"rope": "halves", "gated": None})
    assert dict(derived.metadata) == {"b": "b", "c": "c"}
    assert dict(derived.refused) == {"d": True, "e": True}
    assert derived.block == LayerSpec(norm="layer", rope="halves")
    assert derived.name == "base"


def test_a_block_as_a_whole_is_taken_as_it_is() -> None:
    assert BASE.derive(block=LayerSpec(rope="none")).block == LayerSpec(rope="none")


def test_a_model_type_is_that_of_its_classes_alone() -> None:
    assert BASE.derive(name="other").defaults["model_type"] == "its_own"
    assert dict(BASE.derive(hf_classes=("OtherForCausalLM",)).defaults) == {"c": 1}


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError):
        BASE.derive(blocks={})
    with pytest.raises(TypeError):
        BASE.derive(block={"ropes": "halves"})


def test_names_in_layers() -> None:
    rules = in_layers({"q": "attn_q", "kv": (TensorMap("attn_k"), TensorMap("attn_v", stack=True)), "no": None}, "h")
    assert rules == {
        "h.{i}.q": "blk.{i}.attn_q",
        "h.{i}.kv": (TensorMap("blk.{i}.attn_k"), TensorMap("blk.{i}.attn_v", stack=True)),
        "h.{i}.no": None,
    }
    decided = in_layers({"x": TensorMap(lambda config: config["name"])})["layers.{i}.x"]
    assert isinstance(decided, TensorMap)
    assert callable(decided.name)
    assert (decided.name({"name": "up"}), decided.name({"name": ""})) == ("blk.{i}.up", "")
