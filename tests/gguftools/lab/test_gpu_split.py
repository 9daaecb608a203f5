"""Placing neurons: the best there is within memory, and the file PowerInfer reads."""

from __future__ import annotations

import builtins
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguftools.io.gguf.reader import open_gguf
from gguftools.lab.gpu_split import gpu_split, place, read_activations
from quants.errors import GgufToolsError

from ..command_line import typed
from ..io.torch_files import write_torch
from ..tiny_models import metadata_of, write_model

COUNTS = [np.array([5, 1, 9, 7, 0, 2.0]), np.array([8, 8, 3, 1, 4, 6.0])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two layers of six neurons, 3 × 16 bytes each, and how often they fired."""
    names = ("ffn_gate", "ffn_up", "ffn_down_t")
    matrices = {f"blk.{i}.{name}.weight": np.zeros((6, 4)) for i in range(2) for name in names}
    write_model(tmp_path / "model.gguf", metadata_of({"general.architecture": "llama"}), matrices)
    (tmp_path / "activation").mkdir()
    for i, counts in enumerate(COUNTS):
        write_torch(tmp_path / "activation" / f"activation_{i}.pt", counts.astype([np.int64, np.float32][i]))
    return tmp_path


def test_file(folder: Path) -> None:
    report = gpu_split(folder / "activation", 5 * 48 + 47, batch=1)
    assert report.file == folder.resolve() / "model.gguf.generated.gpuidx"
    opened = open_gguf(report.file)
    assert opened.magic == b"PWRI"
    keys = {key: (opened.metadata.value(key).type.name, opened.metadata[key]) for key in opened.metadata}
    assert keys == {
        "general.architecture": ("STRING", "generic.gpu_index"),
        "generic.gpu_index.block_count": ("UINT32", 2),
        "split.vram_capacity": ("UINT64", 287),
    }
    assert list(opened.tensors) == ["blk.0.gpu_idx", "blk.0.gpu_bucket", "blk.1.gpu_idx", "blk.1.gpu_bucket"]
    assert {tensor.format.name for tensor in opened.tensors.values()} == {"I32"}
    values = {name: tensor.elements()[0].tolist() for name, tensor in opened.tensors.items()}
    assert values == {
        "blk.0.gpu_idx": [0, 0, 1, 1, 0, 0],
        "blk.0.gpu_bucket": [2, 3],
        "blk.1.gpu_idx": [1, 1, 0, 0, 0, 1],
        "blk.1.gpu_bucket": [0, 1, 5],
    }
    assert report.placement.used == 5 * 48
    assert report.placement.activations == pytest.approx((9 + 7 + 8 + 8 + 6) / 54)


def test_no_room_and_room_for_all(folder: Path) -> None:
    none = gpu_split(folder / "activation", 10, batch=1)
    assert open_gguf(none.file).tensors["blk.0.gpu_bucket"].shape == (0,)
    everything = gpu_split(folder / "activation", 10**6, batch=4, overwrite=True)
    assert all(gpu.all() for gpu in everything.placement.gpu)
    assert everything.placement.activations == 1


@pytest.mark.parametrize("seed", range(6))
def test_best_of_all_ways(seed: int) -> None:
    """Against trying every number of batches for every layer; layers differ in neurons and in their size."""
    chance = np.random.default_rng(seed)
    counts = [np.floor(chance.pareto(1.0, n) * 50) for n in (12, 9, 12)]
    sizes, batch, least = [30, 50, 20], 3, int(chance.integers(0, 8))
    vram = int(chance.integers(100, 900))
    found = place(counts, sizes, vram, batch, least)
    best = 0.0
    for numbers in itertools.product(*(range(0, len(each) + 1, batch) for each in counts)):
        fits = sum(n * size for n, size in zip(numbers, sizes, strict=True)) <= vram
        if fits and all(n == 0 or n >= least for n in numbers):
            best = max(best, sum(np.sort(c)[::-1][:n].sum() for c, n in zip(counts, numbers, strict=True)))
    assert found.optimal
    assert found.used <= vram
    assert found.activations == pytest.approx(best / sum(each.sum() for each in counts))
    assert all(not gpu.any() or gpu.sum() >= least for gpu in found.gpu)


def test_whole_layers() -> None:
    """With as many neurons asked of a layer as it has, layers go as a whole."""
    found = place(COUNTS, [48, 48], 7 * 48, batch=1, min_neurons=6)
    assert [int(gpu.sum()) for gpu in found.gpu] == [0, 6]


def test_activations_of_every_type(tmp_path: Path) -> None:
    for i, dtype in enumerate((np.int64, np.int32, np.float32, np.float16)):
        write_torch(tmp_path / f"activation_{i}.pt", np.array([3, 0, 1024], dtype))
    assert [each.tolist() for each in read_activations(tmp_path)] == [[3, 0, 1024]] * 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array([1, -1], np.float32), "negative"),
        (np.array([1, np.nan], np.float32), "no numbers"),
        (np.ones((2, 3), np.float32), "one vector"),
        ({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}, "holds 2 tensors"),
    ],
)
def test_activations_that_make_no_sense(tmp_path: Path, content: Any, message: str) -> None:
    write_torch(tmp_path / "activation_0.pt", content)
    with pytest.raises(GgufToolsError, match=message):
        read_activations(tmp_path)


def test_activations_of_another_model(folder: Path) -> None:
    write_torch(folder / "activation" / "activation_1.pt", np.ones(7, np.float32))
    with pytest.raises(GgufToolsError, match="6 neurons, its activations are of 7"):
        gpu_split(folder / "activation", 1000)
    (folder / "activation" / "activation_1.pt").unlink()
    with pytest.raises(GgufToolsError, match="2 layers, the activations 1"):
        gpu_split(folder / "activation", 1000)


def test_several_models_beside(folder: Path) -> None:
    other = write_model(folder / "other.gguf", metadata_of({"general.architecture": "llama"}), {"a": np.zeros((2, 2))})
    with pytest.raises(GgufToolsError, match="2 GGUF files") as caught:
        gpu_split(folder / "activation", 1000)
    assert "`model`" in str(caught.value.hint)
    with pytest.raises(GgufToolsError, match="0 layers"):
        gpu_split(folder / "activation", 1000, other)


def test_senseless_numbers() -> None:
    for options in ({"batch": 0}, {"min_neurons": -1}):
        with pytest.raises(GgufToolsError, match="no sense"):
            place(COUNTS, [1, 1], 10, **options)


def test_without_the_solver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without_scipy(name: str, *rest: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    with pytest.raises(GgufToolsError, match="needs scipy") as caught:
        gpu_split(folder / "activation", 1000)
    assert "gguftools[powerinfer]" in str(caught.value.hint)
    assert not list(folder.glob("*.gpuidx"))


def test_command(folder: Path) -> None:
    arguments = ["gpu-split", str(folder / "activation"), "--vram", "240", "--batch", "1"]
    result = typed(*arguments)
    assert result.returncode == 0, result.stderr
    assert "5 of 12 neurons" in result.stdout
    assert "70.4 %" in result.stdout
    document = json.loads(typed(*arguments, "--json", "-o", str(folder / "out.gpuidx")).stdout)
    assert document["layers"] == [{"neurons": 6, "on_gpu": 2}, {"neurons": 6, "on_gpu": 3}]
    assert document["optimal"] is True
    assert (folder / "out.gpuidx").exists()
    assert typed("validate", str(folder / "out.gpuidx")).returncode == 0
    assert "gpu_bucket" in typed("show", str(folder / "out.gpuidx")).stdout
