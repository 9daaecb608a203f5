"""Errors of weights: exactly those of numpy in double precision, whatever the formats, experts and damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.inspection.weight_errors import weight_errors
from gguftools.models.model import open as open_file
from gguftools.quantization.imatrix import Entry, ImportanceMatrix, write_imatrix
from quants import from_array
from quants.errors import FileError, OptionError

from ...conftest import ROOT
from ..command_line import typed
from ..tiny_models import edited, metadata_of, write_model

CHECKPOINT = ROOT / "examples" / "austen-4m"
METADATA = metadata_of({"general.architecture": "none"})


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("errors") / "model.gguf"
    convert(CHECKPOINT, path, "f16")
    return path


@pytest.fixture(scope="module")
def quantized(model) -> Path:
    path = model.with_name("q4.gguf")
    quantize(model, "Q4_K_M", path)
    return path


def run(*arguments):
    return typed(*arguments)


def matrix_for(path: Path, seed: int = 1) -> ImportanceMatrix:
    random = np.random.default_rng(seed)
    entries = {
        name: Entry(random.random((1, tensor.width), np.float32) * 100, np.full(1, 50, np.float32))
        for name, tensor in open_file(path).tensors.items()
        if len(tensor.shape) > 1 and name.startswith("blk.")
    }
    return ImportanceMatrix(path.with_suffix(".matrix"), entries, ("text",), 1)


def wanted(x, y, weights=None) -> dict[str, float]:
    x, error = np.float64(x), np.float64(y) - np.float64(x)
    found = {
        "rmse": np.sqrt(np.mean(error**2)),
        "max_error": np.abs(error).max(),
        "relative": np.sqrt((error**2).sum() / (x**2).sum()),
        "sqnr": 10 * np.log10((x**2).sum() / (error**2).sum()),
    }
    if weights is not None:
        found["weighted"] = np.sqrt((weights * error**2).sum() / (weights * x**2).sum())
    return found


def test_figures_of_a_quantized_file(model, quantized):
    matrix = matrix_for(model)
    found = {each.name: each for each in weight_errors(model, quantized, imatrix=matrix, threads=2).tensors}
    for name, tensor in open_file(model).tensors.items():
        x, y = tensor.float32(), open_file(quantized).tensors[name].float32()
        figures = found[name].as_dict()
        assert (figures["a"], figures["b"]) == (tensor.format.name, open_file(quantized).tensors[name].format.name)
        if tensor.format.name == "F32":
            assert (figures["rmse"], figures["relative"], figures["sqnr"], figures["weighted"]) == (0, 0, None, None)
            continue
        entry = matrix.entries.get(name)
        weights = None if entry is None else np.float64(entry.sums)
        for key, value in wanted(x, y, weights).items():
            assert figures[key] == pytest.approx(value, rel=1e-12), (name, key)


def test_a_checkpoint_counts_as_the_file_it_becomes(model, quantized):
    folder, file = weight_errors(CHECKPOINT, quantized), weight_errors(model, quantized)
    assert folder.is_complete
    assert [each.name for each in folder.tensors] == [each.name for each in file.tensors]
    assert folder.total.rmse == pytest.approx(file.total.rmse, rel=1e-3)  # bfloat16, then float16


def test_one_altered_tensor_is_the_worst(quantized, tmp_path):
    values = open_file(quantized).tensors["blk.1.ffn_up.weight"].float32() + np.float32(0.01)
    other = edited(quantized, tmp_path / "b.gguf", {}, {"blk.1.ffn_up.weight": values})
    first, *rest = weight_errors(quantized, other).tensors
    assert (first.name, first.kind, first.layer, first.b) == ("blk.1.ffn_up.weight", "ffn_up.weight", 1, "F32")
    assert first.errors.rmse == pytest.approx(0.01, rel=1e-5)
    assert all(each.errors.squares == 0 and each.errors.sqnr is None for each in rest)


def test_rows_of_many_blocks_and_experts(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 9000, 64)).astype(np.float32)  # experts that end within a block of rows
    y = (x + 0.1 * random.normal(size=x.shape)).astype(np.float32)
    sums = random.random((3, 64), np.float32)
    sums[1] = 0  # an expert that was never used
    matrix = ImportanceMatrix(Path("m"), {"blk.0.w.weight": Entry(sums, np.array([5, 0, 9], np.float32))})
    a, b = (write_model(tmp_path / f"{n}.gguf", METADATA, {"blk.0.w.weight": v}) for n, v in (("a", x), ("b", y)))
    (found,) = weight_errors(a, b, imatrix=matrix, threads=2).tensors
    assert found.errors.weighted == pytest.approx(wanted(x, y, sums[:, None])["weighted"], rel=1e-12)
    first, second, third = found.weighted_by_expert
    assert second is None
    for expert, figure in ((0, first), (2, third)):
        assert figure == pytest.approx(wanted(x[expert], y[expert], sums[expert])["weighted"], rel=1e-12)


def test_totals_are_sums_over_tensors(model, quantized):
    found = weight_errors(model, quantized)
    assert sum(each.values for each in found.kinds.values()) == found.total.values
    assert sum(each.squares for each in found.layers.values()) == pytest.approx(found.total.squares)
    assert found.total.nbytes == open_file(quantized).nbytes
    assert found.kinds["ffn_down.weight"].squares == pytest.approx(
        sum(each.errors.squares for each in found.tensors if each.name.endswith("ffn_down.weight"))
    )
    worst = [each.relative or 0 for each in found.kinds.values()]
    assert worst == sorted(worst, reverse=True)
    assert set(found.by_name()) == {each.name for each in found.tensors}


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("name", lambda each: each.name),
        ("layer", lambda each: (each.layer, each.name)),
        ("rmse", lambda each: -each.errors.rmse),
        ("size", lambda each: -each.errors.nbytes),
        ("worst", lambda each: -each.errors.relative),
    ],
)
def test_orders(model, quantized, sort, key):
    keys = [key(each) for each in weight_errors(model, quantized, sort=sort).tensors]
    assert keys == sorted(keys)


def test_the_worst_by_importance(model, quantized):
    found = weight_errors(model, quantized, imatrix=matrix_for(model)).tensors
    keys = [each.errors.relative if each.errors.weighted is None else each.errors.weighted for each in found]
    assert keys == sorted(keys, reverse=True)


def test_zeros_nan_and_what_is_missing(tmp_path):
    zero, one = np.zeros((2, 32), np.float32), np.ones((2, 32), np.float32)
    bad = one.copy()
    bad[1, 4] = 3
    ids = from_array("ids", np.arange(4, dtype=np.int32))
    a = write_model(
        tmp_path / "a.gguf",
        METADATA,
        {"zero": zero, "was_zero": zero, "bad": one, "shape": one, "gone": one, "ids": ids},
    )
    b = write_model(
        tmp_path / "b.gguf",
        METADATA,
        {"zero": zero, "was_zero": one, "bad": bad, "shape": one[:1], "new": one, "ids": ids},
    )
    raw, at = bytearray(b.read_bytes()), open_file(b).file.offsets["bad"]
    raw[at : at + 4] = np.float32(np.nan).tobytes()
    b.write_bytes(raw)
    found = weight_errors(a, b)
    assert [each.name for each in found.tensors] == ["bad", "was_zero", "zero"]
    figures = {each["name"]: each for each in json.loads(json.dumps(found.as_dict(), allow_nan=False))["tensors"]}
    assert (figures["bad"]["non_finite"], figures["bad"]["max_error"]) == (1, 2)
    shown = {name: (each["relative"], each["sqnr"], each["rmse"]) for name, each in figures.items()}
    assert (shown["zero"], shown["was_zero"]) == ((0, None, 0), (None, None, 1))
    assert (found.only_a, found.only_b) == (("gone",), ("new",))
    assert found.shapes == (("shape", (2, 32), (32,)),)
    assert not found.is_complete
    assert "1 values are NaN" in found.verdict
    assert run("diff", a, b, "--errors").returncode == 1


def test_a_row_that_is_stored_with_one_dimension_fewer(tmp_path):
    values = np.ones((1, 32), np.float32)
    a, b = (write_model(tmp_path / f"{n}.gguf", METADATA, {"w": v}) for n, v in (("a", values), ("b", values[0])))
    assert weight_errors(a, b).is_complete


def test_wrong_arguments(model, quantized, tmp_path):
    with pytest.raises(OptionError, match="no order 'wrost'"):
        weight_errors(model, quantized, sort="wrost")
    with pytest.raises(FileError, match="absent"):
        weight_errors(model, quantized, imatrix=tmp_path / "absent")
    entry = Entry(np.ones((1, 7), np.float32), np.ones(1, np.float32))
    with pytest.raises(FileError, match="the tensor needs 256"):
        weight_errors(model, quantized, imatrix=ImportanceMatrix(Path("m"), {"blk.0.ffn_up.weight": entry}))
    idle = ImportanceMatrix(Path("m"), {"other": entry})
    assert "nothing on any" in weight_errors(model, quantized, imatrix=idle).warnings[0]


def test_command_line(model, quantized, tmp_path):
    write_imatrix(matrix_for(model), tmp_path / "matrix.gguf")
    done = run("diff", model, quantized, "--errors", "--imatrix", tmp_path / "matrix.gguf", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found.pop("format_version") == 1
    assert found == json.loads(
        json.dumps(gguftools.weight_errors(model, quantized, imatrix=tmp_path / "matrix.gguf").as_dict())
    )
    done = run("diff", model, quantized, "--errors")
    assert done.returncode == 0
    assert "SQNR" in done.stdout
    assert "weighted" not in done.stdout
    assert run("diff", model, quantized, "--imatrix", tmp_path / "matrix.gguf").returncode == 2
