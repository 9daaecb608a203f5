"""Grok 2 as it is published: each processor's share of the experts in files of its own."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from gguftools.io.checkpoint.safetensors import open_safetensors
from quants.errors import ModelError

from . import checkpoints

EXPERTS = ".block_sparse_moe.experts."


def in_shares(folder: Path, count: int) -> list[Path]:
    """Put a checkpoint's experts into so many files."""
    values = {name: each.float32() for name, each in open_safetensors(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    files = [folder / f"pytorch_model-00001-TP-{i:03d}.safetensors" for i in range(count)]
    save_file(
        {name: each for name, each in values.items() if EXPERTS not in name},
        folder / "pytorch_model-00000-TP-common.safetensors",
    )
    for i, file in enumerate(files):
        save_file(
            {
                name: np.ascontiguousarray(np.split(each, count, axis=1 if ".w2." in name else 0)[i])
                for name, each in values.items()
                if EXPERTS in name
            },
            file,
        )
    return files


def test_shares_of_processors_are_joined(tmp_path: Path) -> None:
    checkpoints.build("grok2", tmp_path / "a" / "grok2")
    shutil.copytree(tmp_path / "a" / "grok2", tmp_path / "b" / "grok2")
    files = in_shares(tmp_path / "b" / "grok2", 4)
    for name in "ab":
        gguftools.convert(tmp_path / name / "grok2", tmp_path / f"{name}.gguf", "f32")
    whole, joined = (gguftools.open(tmp_path / f"{name}.gguf") for name in "ab")
    assert {key: str(value) for key, value in whole.metadata.items()} == {
        key: str(value) for key, value in joined.metadata.items()
    }
    assert whole.tensors.keys() == joined.tensors.keys()
    for name, tensor in whole.tensors.items():
        assert np.array_equal(tensor.raw(), joined.tensors[name].raw()), name
    kept = files[2].read_bytes()
    files[2].unlink()
    with pytest.raises(ModelError, match="the share of processor 2 is missing"):
        gguftools.convert(tmp_path / "b" / "grok2", tmp_path / "c.gguf")
    files[2].write_bytes(kept)
    narrow = {name: each.float32()[:, :1] for name, each in open_safetensors(files[1]).items()}
    save_file(narrow, files[1])
    with pytest.raises(ModelError, match=r"TP-001\.safetensors.*, but .*TP-000\.safetensors"):
        gguftools.convert(tmp_path / "b" / "grok2", tmp_path / "c.gguf")
