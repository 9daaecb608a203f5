"""Differences between models: what is found, and how far it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from archs.metadata import Value, ValueType
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.inspection.compare import diff
from gguftools.inspection.drafting import can_draft
from gguftools.models.model import open as open_file
from quants.errors import VocabularyError

from ...conftest import ROOT
from ..command_line import typed
from ..tiny_models import edited, metadata_of, write_model

CHECKPOINT = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "model.gguf"
    convert(CHECKPOINT, path, "f16")
    return path


def run(*arguments):
    return typed(*arguments)


def test_a_file_is_itself(model):
    found = diff(model, model)
    assert not found.differ
    assert {tensor.kind for tensor in found.tensors} == {"same"}
    assert run("diff", model, model).returncode == 0


def test_a_file_comes_from_its_checkpoint(model):
    found = diff(CHECKPOINT, model)
    assert not found.differ
    assert {tensor.kind for tensor in found.tensors} == {"same", "rounded"}
    assert "rounded" in found.verdict


def test_a_file_of_another_checkpoint(model, tmp_path):
    folder = Path(shutil.copytree(CHECKPOINT, tmp_path / "austen-4m"))
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-2] ^= 1  # the last bit of the last value
    (folder / "model.safetensors").write_bytes(raw)
    (changed,) = diff(folder, model).different_tensors
    assert (changed.name, changed.kind) == ("output_norm.weight", "bytes")
    assert changed.figures is not None
    assert 0 < changed.figures.relative < 0.01


def test_a_quantized_file_of_a_checkpoint(model, tmp_path):
    quantize(model, "Q4_K_M", tmp_path / "q4.gguf")
    found = diff(CHECKPOINT, tmp_path / "q4.gguf")
    assert not found.keys
    assert {tensor.kind for tensor in found.different_tensors} == {"type"}
    assert all(0.01 < tensor.figures.relative < 0.1 for tensor in found.different_tensors)


def test_figures_are_those_of_the_values(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(5000, 64)).astype(np.float32)  # more than a block of rows
    y = x.copy()
    y[4321, 5] += 3
    y[17, 2] -= 1
    a, b = (
        write_model(tmp_path / f"{n}.gguf", metadata_of({"general.architecture": "none"}), {"w.weight": v})
        for n, v in (("a", x), ("b", y))
    )
    figures = diff(a, b, threads=2).tensors[0].figures
    error = y.astype(np.float64) - x
    assert figures.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    assert figures.relative == pytest.approx(np.sqrt(np.mean(error**2) / np.mean(x.astype(np.float64) ** 2)))
    assert figures.max_error == np.abs(error).max()
    assert figures.row == 4321


def test_rows_that_are_the_same_count_for_relative_errors(tmp_path):
    x = np.ones((3 << 14, 64), np.float32)  # three blocks of rows
    y = x.copy()
    y[0, 0] += 1
    a, b = (
        write_model(tmp_path / f"{n}.gguf", metadata_of({"general.architecture": "none"}), {"w.weight": v})
        for n, v in (("a", x), ("b", y))
    )
    figures = diff(a, b).tensors[0].figures
    assert figures.relative == pytest.approx(figures.rmse)


def test_nan_is_the_largest_error(tmp_path):
    x = np.ones((4, 32), np.float32)
    y = x.copy()
    y[2, 3] = np.nan
    kinds = metadata_of({"general.architecture": "none"})
    a = write_model(tmp_path / "a.gguf", kinds, {"w.weight": x})
    raw = bytearray(a.read_bytes())
    at = open_file(a).file.offsets["w.weight"]
    raw[at : at + y.nbytes] = y.tobytes()
    (tmp_path / "b.gguf").write_bytes(raw)
    assert np.isnan(diff(a, tmp_path / "b.gguf").tensors[0].figures.max_error)
    assert not diff(tmp_path / "b.gguf", tmp_path / "b.gguf").differ


def test_tensors_of_another_shape_or_on_one_side(model, tmp_path):
    other = edited(
        model,
        tmp_path / "b.gguf",
        {},
        {"output_norm.weight": np.ones(128), "blk.0.attn_norm.weight": None, "more.weight": np.ones((2, 32))},
    )
    kinds = {tensor.name: tensor.kind for tensor in diff(model, other).different_tensors}
    assert kinds == {"output_norm.weight": "shape", "blk.0.attn_norm.weight": "removed", "more.weight": "added"}


def test_metadata(model, tmp_path):
    tokens = open_file(model).metadata["tokenizer.ggml.tokens"].tolist()
    tokens[7] = "seven"
    other = edited(
        model,
        tmp_path / "b.gguf",
        {
            "general.name": "another",
            "llama.context_length": Value(256, ValueType.UINT64),
            "general.url": "x",
            "llama.rope.freq_base": None,
            "tokenizer.ggml.tokens": tokens,
        },
    )
    found = {key.key: key for key in diff(model, other).keys}
    assert {key: each.kind for key, each in found.items()} == {
        "general.name": "changed",
        "llama.context_length": "type",
        "general.url": "added",
        "llama.rope.freq_base": "removed",
        "tokenizer.ggml.tokens": "changed",
    }
    assert "first is item 7" in found["tokenizer.ggml.tokens"].note


def test_command_line(model, tmp_path):
    other = edited(model, tmp_path / "b.gguf", {"general.name": "another"})
    done = run("diff", model, other)
    assert done.returncode == 1
    assert '+ general.name  STRING "another"' in done.stdout
    done = run("diff", model, other, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["metadata"][0]["key"] == "general.name"


def test_drafting(model, tmp_path):
    found = can_draft(model, model)
    assert found.possible
    assert found.same_until == 2048
    assert run("diff", "--vocab", model, model).returncode == 0


def test_drafting_with_another_token(model, tmp_path):
    tokens = open_file(model).metadata["tokenizer.ggml.tokens"].tolist()
    tokens[3], tokens[100] = "three", "hundred"
    found = can_draft(model, edited(model, tmp_path / "b.gguf", {"tokenizer.ggml.tokens": tokens}))
    assert not found.possible
    assert (found.same_until, found.differing) == (100, 2)
    assert "hundred" in found.obstacles[0]
    assert not found.edits


def test_drafting_with_other_special_tokens_can_be_mended(model, tmp_path):
    other = edited(model, tmp_path / "b.gguf", {"tokenizer.ggml.add_bos_token": False})
    found = can_draft(model, other)
    assert not found.possible
    assert found.edits == ("tokenizer.ggml.add_bos_token=true",)
    mended = edited(other, tmp_path / "c.gguf", {"tokenizer.ggml.add_bos_token": True})
    assert can_draft(model, mended).possible


def test_drafting_with_more_tokens(model, tmp_path):
    for more, possible in ((128, True), (129, False)):
        tokens = [*open_file(model).metadata["tokenizer.ggml.tokens"], *(f"new {i}" for i in range(more))]
        types = np.ones(len(tokens), np.int32)
        other = edited(
            model,
            tmp_path / "b.gguf",
            {
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": Value(types, ValueType.ARRAY, ValueType.INT32),
            },
        )
        assert can_draft(model, other).possible == possible


def test_drafting_needs_vocabularies(model, tmp_path):
    bare = write_model(tmp_path / "bare.gguf", metadata_of({"general.architecture": "none"}), {})
    with pytest.raises(VocabularyError, match="no vocabulary"):
        can_draft(model, bare)
