"""Logits of files that lack keys or are of older converters: as llama.cpp b11434 reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import gguftools
from quants import from_array
from runtime.model import RunningModel
from tests.archs.test_options import CASES, converted

IDS = [213, 53, 189, 130, 79, 201, 233, 121, 100, 10, 170, 172, 215, 76, 107, 68, 35, 236, 20, 49]
BASE = "gemma3.rope.freq_base_swa"


def case(name: str) -> dict[str, Any]:
    return next(each for each in CASES if each["name"] == name)


def test_gemma_3_without_the_base_of_windowed_layers(tmp_path: Path) -> None:
    """Published files of spring 2025 lack it: the layers with a window rotate by 10000."""
    made = converted(case("gemma3-linear-7-0"))
    metadata = {**made.metadata, "gemma3.rope.freq_base": 1e6, BASE: 10_000.0}
    path, edited = tmp_path / "model.gguf", tmp_path / "edited.gguf"
    gguftools.Model(metadata, dict(made.tensors)).save(path)
    gguftools.set_metadata(path, [gguftools.Remove(BASE)], output=edited)
    said, absent = (gguftools.load(gguftools.open(each), threads=1).logits(IDS) for each in (path, edited))
    assert_array_equal(absent, said)
    other = RunningModel({**metadata, BASE: 1e6}, made.tensors, threads=1).logits(IDS)
    assert np.abs(other - said).max() > 0.01


def test_deepseek_with_one_matrix_for_keys_and_values() -> None:
    """Files from before April 2025 have no lengths for latent attention, and one matrix that widens the latent."""
    made = converted(next(each for each in CASES if each["name"].startswith("deepseek-v2-yarn")))
    yarn = {"type": "yarn", "factor": 16.0, "original_context_length": 64, "yarn_log_multiplier": 0.0707}
    new = {**made.metadata, **{f"deepseek2.rope.scaling.{key}": value for key, value in yarn.items()}}
    keys, tensors = dict(new), dict(made.tensors)
    for part in ("key", "value"):
        keys[f"deepseek2.attention.{part}_length"] = keys.pop(f"deepseek2.attention.{part}_length_mla")
    keys["deepseek2.attention.head_count_kv"] = keys["deepseek2.attention.head_count"]
    for layer in range(keys["deepseek2.block_count"]):
        k, v = (tensors.pop(f"blk.{layer}.attn_{each}_b.weight").float32() for each in "kv")
        name = f"blk.{layer}.attn_kv_b.weight"
        both: NDArray[np.float32] = np.concatenate([np.swapaxes(k, 1, 2), v], axis=1)
        tensors[name] = from_array(name, np.ascontiguousarray(both.reshape(-1, both.shape[2])))
    wanted = RunningModel(new, made.tensors).logits(IDS)
    assert_allclose(RunningModel(keys, tensors).logits(IDS), wanted, atol=2e-5 * wanted.std())


def test_a_stretched_rotation_by_its_old_name() -> None:
    made = converted(case("llama-linear-sharded-7-0"))
    keys = {key: value for key, value in made.metadata.items() if ".rope.scaling." not in key}
    old, new, plain = (
        RunningModel({**keys, **more}, made.tensors, threads=1).logits(IDS)
        for more in (
            {"llama.rope.scale_linear": 4.0},
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {},
        )
    )
    assert_array_equal(old, new)
    assert np.abs(old - plain).max() > 0.01


@pytest.mark.parametrize("said", [True, False, None])
def test_layers_of_stablelm_are_parallel_where_they_lack_a_norm(said: bool | None) -> None:
    """llama.cpp's converter says that they are in files of models whose config does not say it."""
    made = converted(
        next(
            each
            for each in CASES
            if (each["name"].startswith("stablelm-") and not each["config"].get("use_parallel_residual"))
        )
    )
    key = "stablelm.use_parallel_residual"
    keys = {other: value for other, value in made.metadata.items() if other != key}
    assert "blk.0.ffn_norm.weight" in made.tensors
    assert_array_equal(
        RunningModel(keys if said is None else {**keys, key: said}, made.tensors).logits(IDS), made.logits(IDS)
    )
