"""A Model that is made of arrays, changed and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools

METADATA = {"general.architecture": "llama", "llama.block_count": 1}
VALUES = np.arange(16, dtype=np.float32).reshape(2, 8)


@pytest.fixture
def model() -> gguftools.Model:
    return gguftools.Model(METADATA, {"token_embd.weight": VALUES})


def test_tensors_that_are_replaced_take_the_new_names(model: gguftools.Model, tmp_path: Path):
    model.tensors = {f"new.{name}": tensor for name, tensor in model.tensors.items()}
    model.save(tmp_path / "renamed.gguf")
    assert list(gguftools.open(tmp_path / "renamed.gguf").tensors) == ["new.token_embd.weight"]


@pytest.mark.parametrize("change", ["update", "setdefault", "pop"])
def test_every_way_to_change_a_dict_changes_the_tensors(model: gguftools.Model, tmp_path: Path, change: str):
    if change == "update":
        model.tensors.update({"a": VALUES})
    elif change == "setdefault":
        model.tensors.setdefault("a", VALUES)
    else:
        model.tensors["a"] = model.tensors.pop("token_embd.weight")
    model.save(tmp_path / "changed.gguf")
    with gguftools.open(tmp_path / "changed.gguf") as changed:
        np.testing.assert_array_equal(changed.tensors["a"], VALUES)
        assert ("token_embd.weight" in changed.tensors) == (change != "pop")


def test_metadata_that_is_replaced_is_typed(model: gguftools.Model):
    model.metadata = {**METADATA, "llama.context_length": 4096}
    assert model.metadata.value("llama.context_length").type.name == "UINT32"


@pytest.mark.parametrize("name", ["metadata", "tensors"])
def test_what_is_no_mapping_is_refused(model: gguftools.Model, name: str):
    with pytest.raises(gguftools.GgufToolsError, match=f"{name} is list; a mapping by name was expected"):
        setattr(model, name, [1])
