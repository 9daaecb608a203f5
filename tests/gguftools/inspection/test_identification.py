"""How a file was made: recipes, tensors of other formats, other matrices, other values, other originals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.inspection.identification import identify
from gguftools.models.model import open as open_file
from gguftools.quantization.imatrix import Entry, ImportanceMatrix, write_imatrix
from gguftools.quantization.options import QuantizeOptions
from quants import from_array
from quants.errors import OptionError

from ...conftest import ROOT
from ..command_line import typed
from ..tiny_models import edited

CHECKPOINT = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("identify")


@pytest.fixture(scope="module")
def model(folder) -> Path:
    convert(CHECKPOINT, folder / "model.gguf", "bf16")
    return folder / "model.gguf"


@pytest.fixture(scope="module")
def matrix(model, folder) -> Path:
    """An importance matrix file, also for the widest rows."""
    random = np.random.default_rng(1)
    entries = {
        name: Entry(random.random((1, tensor.width), np.float32) ** 4 + np.float32(0.01), np.ones(1, np.float32))
        for name, tensor in open_file(model).tensors.items()
        if len(tensor.shape) > 1 and name.startswith("blk.")
    }
    write_imatrix(ImportanceMatrix(Path("m"), entries, ("text",), 1), folder / "matrix.gguf")
    return folder / "matrix.gguf"


@pytest.fixture(scope="module")
def plain(model, folder) -> Path:
    quantize(model, "Q4_K_M", folder / "plain.gguf")
    return folder / "plain.gguf"


@pytest.fixture(scope="module")
def weighted(model, folder, matrix) -> Path:
    quantize(model, "Q4_K_M", folder / "weighted.gguf", imatrix=matrix)
    return folder / "weighted.gguf"


def run(*arguments):
    return typed(*arguments)


def formats(path: Path) -> dict[str, str]:
    return {name: tensor.format.name for name, tensor in open_file(path).tensors.items()}


@pytest.mark.parametrize("original", ["model", "checkpoint"])
def test_a_plain_recipe(model, plain, original):
    found = identify(CHECKPOINT if original == "checkpoint" else model, plain, threads=2)
    assert (found.recipe, found.pure, found.declared, found.declared_imatrix) == ("Q4_K_M", False, "Q4_K_M", None)
    assert found.is_explained
    assert not found.others
    assert set(found.made) == {"copied", "plain"}
    assert all(each.rows == each.equal_rows > 0 for each in found.tensors)
    assert 0 < found.rows < found.of_rows


@pytest.mark.parametrize("recipe", ["F16", "Q8_0", "Q6_K", "Q5_K_S", "Q4_0", "Q3_K_L", "Q2_K", "IQ4_XS", "IQ4_NL"])
def test_every_recipe_is_found(model, tmp_path, recipe):
    quantize(model, recipe, tmp_path / "x.gguf")
    found = identify(model, tmp_path / "x.gguf")
    assert recipe in (found.recipe, *found.also)
    assert found.recipe == recipe
    assert found.is_explained


def test_the_recipe_does_not_rest_on_what_the_file_says(model, plain, tmp_path):
    liar = edited(plain, tmp_path / "liar.gguf", {"general.file_type": 7})
    found = identify(model, liar)
    assert (found.recipe, found.declared) == ("Q4_K_M", "Q8_0")
    assert "declared: Q8_0" in found.verdict
    silent = edited(plain, tmp_path / "silent.gguf", {"general.file_type": None})
    assert identify(model, silent).recipe == "Q4_K_M"


def test_a_pure_file(model, tmp_path):
    quantize(model, "Q4_K_M", tmp_path / "x.gguf", options=QuantizeOptions(pure=True))
    found = identify(model, tmp_path / "x.gguf")
    assert (found.recipe, found.pure) == ("Q4_K_M", True)
    assert "--pure" in str(found.command)


def test_with_the_matrix_it_is_explained_and_without_it_is_not(model, weighted, matrix):
    found = identify(model, weighted, imatrix=matrix)
    assert found.is_explained
    assert found.made["imatrix"] > 10
    assert "--imatrix" in str(found.command)
    without = identify(model, weighted)
    assert not without.is_explained
    assert without.declared_imatrix == "matrix.gguf"
    assert {each.made for each in without.unexplained} == {"other method"}
    for each in without.unexplained:
        assert each.relative is not None
        assert each.expected_relative is not None
        assert each.relative == pytest.approx(each.expected_relative, rel=1)


def test_formats_that_need_a_matrix(model, matrix, tmp_path):
    quantize(model, "IQ2_XS", tmp_path / "x.gguf", imatrix=matrix)
    found = identify(model, tmp_path / "x.gguf", imatrix=matrix)
    assert found.recipe == "IQ2_XS"
    assert found.is_explained
    without = identify(model, tmp_path / "x.gguf")
    assert without.recipe == "IQ2_XS"
    assert {each.made for each in without.unexplained} == {"other method"}


def test_rules_are_found_and_make_the_same_formats(model, tmp_path):
    rules = {r"blk\.[01]\.ffn_down": "Q8_0", "attn_q": "Q5_0", "token_embd": "Q6_K"}
    quantize(model, "Q4_K_M", tmp_path / "x.gguf", options=QuantizeOptions(rules=rules))
    found = identify(model, tmp_path / "x.gguf")
    assert found.recipe == "Q4_K_M"
    assert found.is_explained
    assert {each.name for each in found.others} >= {"token_embd.weight", "blk.3.attn_q.weight", "blk.0.ffn_down.weight"}
    assert (r"^blk\.\d+\.attn_q\.weight$", "Q5_0") in found.rules
    quantize(model, found.recipe, tmp_path / "y.gguf", options=QuantizeOptions(rules=found.rules))
    assert formats(tmp_path / "y.gguf") == formats(tmp_path / "x.gguf")
    words = shlex.split(str(found.command))
    assert words[:3] == ["gguftools", "quantize", str(model)]
    assert run(*words[1:], "-o", tmp_path / "z.gguf").returncode == 0
    assert (tmp_path / "z.gguf").read_bytes() == (tmp_path / "y.gguf").read_bytes()


def test_values_of_another_model(model, plain, tmp_path):
    name = "blk.2.ffn_up.weight"
    values = np.roll(open_file(plain).tensors[name].float32(), 1, axis=0)
    form = open_file(plain).tensors[name].format
    raw = form.encode(values)
    other = edited(plain, tmp_path / "b.gguf", {}, {name: _stored(name, form, values.shape, raw)})
    (changed,) = identify(model, other).unexplained
    assert (changed.name, changed.made, changed.equal_rows) == (name, "other values", 0)


def _stored(name, form, shape, raw):
    tensor = from_array(name, np.zeros(shape, np.float32))
    return type(tensor)(name, shape, form, lambda start, stop: raw[start:stop])


def test_one_row_between_the_samples_is_found_in_full(model, plain, tmp_path):
    name = "output.weight"
    tensor = open_file(plain).tensors[name]
    raw = tensor.raw().copy()
    raw[len(raw) // 2 + 55] = raw[0]
    other = edited(plain, tmp_path / "b.gguf", {}, {name: _stored(name, tensor.format, tensor.shape, raw)})
    assert identify(model, other).is_explained
    found = identify(model, other, full=True, threads=2)
    (changed,) = found.unexplained
    assert (changed.name, changed.rows - changed.equal_rows) == (name, 1)
    assert found.rows == found.of_rows
    assert identify(model, plain, full=True).is_explained


def test_an_original_that_was_rounded_first(model, tmp_path):
    random = np.random.default_rng(0)
    values = random.normal(size=open_file(model).tensors["blk.0.ffn_up.weight"].shape).astype(np.float32)
    first = edited(model, tmp_path / "f32.gguf", {}, {"blk.0.ffn_up.weight": values})
    for via, recipe in (("F16", "Q8_0"), ("BF16", "Q4_0"), ("Q8_0", "Q4_K_M")):
        between, last = tmp_path / f"by-{via}.gguf", tmp_path / f"{recipe}.gguf"
        quantize(first, via, between)
        quantize(between, recipe, last, options=QuantizeOptions(allow_requantize=True))
        identified = identify(first, last)
        assert f"rounded to {via} first" in identified.verdict
        found = {each.name: each for each in identified.tensors}
        assert (found["blk.0.ffn_up.weight"].made, found["blk.0.ffn_up.weight"].via) == ("plain", via)


def test_tensors_that_are_missing_or_of_another_shape(model, plain, tmp_path):
    other = edited(
        plain,
        tmp_path / "b.gguf",
        {},
        {"blk.0.attn_norm.weight": None, "output_norm.weight": np.ones(128), "more.weight": np.ones((2, 32))},
    )
    found = identify(model, other)
    assert (found.only_original, found.only_file) == (("blk.0.attn_norm.weight",), ("more.weight",))
    assert found.other_shapes == ("output_norm.weight",)
    assert not found.is_explained
    assert found.recipe == "Q4_K_M"


def test_nan_in_the_original_or_in_the_file(model, plain, tmp_path):
    raw, at = bytearray(plain.read_bytes()), open_file(plain).file.offsets["output_norm.weight"]
    raw[at : at + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "b.gguf").write_bytes(raw)
    (changed,) = identify(model, tmp_path / "b.gguf").unexplained
    assert (changed.made, changed.relative) == ("other values", None)
    assert identify(tmp_path / "b.gguf", tmp_path / "b.gguf").is_explained


def test_the_original_comes_first(model, plain):
    with pytest.raises(OptionError, match="fewer bits"):
        identify(plain, model)


def test_another_model(plain, tmp_path):
    other = edited(plain, tmp_path / "a.gguf", {}, dict.fromkeys(open_file(plain).tensors))
    with pytest.raises(OptionError, match="no tensor of"):
        identify(other, plain)


def test_command_line(model, plain, weighted, matrix):
    done = run("diff", model, plain, "--identify")
    assert done.returncode == 0, done.stderr
    assert "every tensor to the byte" in done.stdout
    assert f"gguftools quantize {model} Q4_K_M" in done.stdout
    done = run("diff", CHECKPOINT, weighted, "--identify")
    assert done.returncode == 1
    assert "matrix.gguf: --imatrix tries one" in done.stdout
    done = run("diff", model, weighted, "--identify", "--full", "--imatrix", matrix, "--json")
    assert done.returncode == 0
    expected = gguftools.identify(model, weighted, imatrix=matrix, full=True).as_dict()
    assert json.loads(done.stdout) == {"format_version": 1} | json.loads(json.dumps(expected, allow_nan=False))
