"""Bases: final states or likeliest tokens in a file, and what is found of them beside the model itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gguftools
from archs.metadata import Metadata
from gguftools.conversion.convert import convert
from gguftools.io.gguf.reader import open_gguf
from gguftools.measurement.bases.base import Run, is_base, vocabulary_digest
from gguftools.measurement.bases.reading import open_base
from gguftools.measurement.bases.writing import saved_base
from gguftools.measurement.texts import NamedText, windows_of
from gguftools.writing.resume import partial_path
from quants import from_array
from quants.errors import FileError, OptionError
from runtime.evaluation.divergence import KL, RunningLogits, divergence
from runtime.evaluation.stored_states import likeliest
from runtime.evaluation.windows import Window
from runtime.head import Output, output_of
from runtime.model import RunningModel

from ....conftest import ROOT
from ...command_line import typed

TEXT = ROOT / "examples" / "persuasion.txt"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    source = ROOT / "examples" / "austen-4m"
    return {name: convert(source, folder / f"{name}.gguf", name).outputs[0].file for name in ("F16", "Q4_0")}


def running(path, windows):
    model = gguftools.open(path)
    net = RunningModel(model.metadata, model.tensors, threads=2)
    return model, net, RunningLogits(net.lazy_logits, windows)


@pytest.fixture(scope="module")
def measured(files):
    """The windows, what runs the base and the other file on them, and what a base needs to be written."""
    windows = windows_of(gguftools.open(files["F16"]), NamedText("novel", TEXT), 128, chunks=3).windows
    model, net, base = running(files["F16"], windows)
    texts = {"first": windows[:1], "second": windows[1:]}
    output = output_of(net.network)
    run = Run(texts, 128, str(files["F16"]), vocabulary_digest(model.metadata), net.precision, output)
    return windows, base, running(files["Q4_0"], windows)[2], run


def write(target, measured, only=None, **given):
    windows, base, other, run = measured
    with saved_base(target, run, **given) as writer:

        def save(number, start, stop, rows):
            if only is None or number in only:
                writer.add(number, start, stop, rows if writer.needs_rows else base.states(number, start, stop))

        return divergence(windows, base, {"other": other}, save=save)


@pytest.mark.parametrize("given", [{}, {"with_output": True}, {"top_k": 3}])
def test_a_bias_of_the_output_is_kept_with_states(measured, tmp_path, given):
    windows, base, other, run = measured
    bias = np.arange(run.output.weight.rows, dtype=np.float32)
    biased = replace(run, output=replace(run.output, bias=bias))
    write(tmp_path / "base.gguf", (windows, base, other, biased), **given)
    assert ("output.bias" in open_gguf(tmp_path / "base.gguf").tensors) == ("top_k" not in given)
    if "top_k" not in given:
        assert np.array_equal(open_base(tmp_path / "base.gguf").source.output.bias, bias)


def test_states_give_the_same_bits(measured, tmp_path):
    windows, _, other, run = measured
    live = write(tmp_path / "base.gguf", measured)
    stored = open_base(tmp_path / "base.gguf")
    assert is_base(tmp_path / "base.gguf")
    assert not is_base(TEXT)
    assert list(stored.texts) == ["first", "second"]
    assert (stored.vocabulary_digest, stored.n_ctx) == (run.vocabulary, 128)
    for mine, given in zip(stored.windows, windows, strict=True):
        for name in ("inputs", "scored", "targets", "start"):
            assert np.array_equal(getattr(mine, name), getattr(given, name))
    again = divergence(stored.windows, stored, {"other": other})
    assert np.array_equal(again.base, live.base)
    assert np.array_equal(again.apart["other"], live.apart["other"])


def test_the_matrix_is_found_by_its_digest(measured, files, tmp_path):
    windows, _, other, run = measured
    copy = tmp_path / "moved.gguf"
    gone = Run(run.texts, run.n_ctx, str(tmp_path / "gone.gguf"), run.vocabulary, run.precision, run.output)
    live = write(tmp_path / "base.gguf", (windows, measured[1], other, gone))
    with pytest.raises(FileError, match=r"needs the output matrix of .*gone.gguf") as caught:
        open_base(tmp_path / "base.gguf", others=[files["Q4_0"]])
    assert "`base_model`" in str(caught.value.hint)
    with pytest.raises(FileError, match="does not have the output matrix"):
        open_base(tmp_path / "base.gguf", base_model=files["Q4_0"])
    copy.write_bytes(files["F16"].read_bytes())
    for given in ({"others": [files["Q4_0"], copy]}, {"base_model": copy}):
        stored = open_base(tmp_path / "base.gguf", **given)
        again = divergence(stored.windows, stored, {"other": other})
        assert np.array_equal(again.apart["other"], live.apart["other"])
    write(tmp_path / "whole.gguf", (windows, measured[1], other, gone), with_output=True)
    stored = open_base(tmp_path / "whole.gguf")
    assert np.array_equal(divergence(stored.windows, stored, {"other": other}).base, live.base)


@pytest.mark.parametrize("k", [5, 40])
def test_likeliest_tokens_bound_the_divergence_from_below(measured, tmp_path, k):
    _, base, other, _ = measured
    live = write(tmp_path / "top.gguf", measured, top_k=k)
    stored = open_base(tmp_path / "top.gguf")
    assert stored.lower_bound
    bound = divergence(stored.windows, stored, {"other": other})
    kl, exact = bound.apart["other"][:, KL], live.apart["other"][:, KL]
    assert np.all(kl <= exact + 1e-6)
    assert 0.3 * exact.mean() < kl.mean() < exact.mean()
    np.testing.assert_allclose(bound.base[:, 4], live.base[:, 4], atol=2e-6)
    np.testing.assert_allclose(bound.base[:, 1], live.base[:, 1], atol=2e-6)
    assert np.array_equal(bound.base[:, 2], live.base[:, 2])
    # by the definition, from float64 distributions
    p, q = (np.asarray(each.logits(0, 0, len(measured[0][0].scored)), np.float64) for each in (base, other))
    p, q = (each - np.log(np.exp(each).sum(1, keepdims=True)) for each in (p, q))
    for i in range(4):
        ids = np.argsort(-p[i], kind="stable")[:k]
        rest = [np.log1p(-np.exp(each[i, ids]).sum()) for each in (p, q)]
        want = (np.exp(p[i, ids]) * (p[i, ids] - q[i, ids])).sum() + np.exp(rest[0]) * (rest[0] - rest[1])
        assert kl[i] == pytest.approx(want, rel=1e-4, abs=2e-7)


def test_all_tokens_are_no_bound_but_the_divergence(measured, tmp_path):
    other = measured[2]
    live = write(tmp_path / "top.gguf", measured, top_k=1 << 20)
    stored = open_base(tmp_path / "top.gguf")
    bound = divergence(stored.windows, stored, {"other": other})
    np.testing.assert_allclose(bound.apart["other"][:, KL], live.apart["other"][:, KL], rtol=1e-4, atol=1e-6)


def test_equal_logits_are_taken_in_order():
    from runtime.evaluation.divergence import row_figures

    logits = np.array([[1, 3, 3, 0, 3]], np.float32)
    assert likeliest(row_figures(logits, np.array([0])), 2).ids.tolist() == [[1, 2]]


@pytest.mark.parametrize("top_k", [None, 7])
def test_a_cut_run_goes_on_at_its_window(measured, tmp_path, top_k):
    target, source = tmp_path / "base.gguf", tmp_path / "source"
    source.write_text("unchanged")
    windows, base, _, run = measured
    given = {"top_k": top_k, "sources": [source]}

    def cut_short():
        with saved_base(target, run, **given) as writer:
            for number in (0, 2):
                window = windows[number]
                half = len(window.scored) // 2  # fewer rows are multiplied otherwise, which shows in logits
                for start, stop in ((0, len(window.scored)),) if top_k else ((0, half), (half, len(window.scored))):
                    rows = base.rows(number, start, stop, window.targets[start:stop], 1)
                    writer.add(number, start, stop, rows if top_k else base.states(number, start, stop))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert not target.exists()
    assert partial_path(target).exists()
    with saved_base(target, run, resume=True, **given) as writer:
        assert [writer.covered(number) for number in range(3)] == [True, False, True]
        rows = base.rows(1, 0, len(windows[1].scored), windows[1].targets, 1)
        writer.add(1, 0, len(windows[1].scored), rows if top_k else base.states(1, 0, len(windows[1].scored)))
    write(tmp_path / "whole.gguf", measured, top_k=top_k)
    assert target.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_base_of_a_changed_file_is_not_continued(measured, tmp_path):
    target, source = tmp_path / "base.gguf", tmp_path / "source"
    source.write_text("unchanged")
    with pytest.raises(KeyboardInterrupt), saved_base(target, measured[3], sources=[source]):
        raise KeyboardInterrupt
    source.write_text("changed it")
    with (
        pytest.raises(FileError, match="source was changed"),
        saved_base(target, measured[3], sources=[source], resume=True),
    ):
        pass


def test_what_is_missing_does_not_appear(measured, tmp_path):
    with pytest.raises(FileError, match="rows of 'states' were written"):
        write(tmp_path / "base.gguf", measured, only={0, 2})
    assert not (tmp_path / "base.gguf").exists()


def test_a_top_k_base_needs_no_matrix(measured, tmp_path):
    with pytest.raises(OptionError, match="needs no output matrix"):
        write(tmp_path / "base.gguf", measured, top_k=4, with_output=True)
    with pytest.raises(OptionError, match="at least 1"):
        write(tmp_path / "base.gguf", measured, top_k=0)


def damage(tensor, index, value):
    def change(file):
        stored = file.tensors[tensor].elements().copy().reshape(file.tensors[tensor].shape)
        stored[index] = value
        return {tensor: from_array(tensor, stored)}, {}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("tokens", 5, 1 << 30), "token outside its vocabulary"),
        (damage("tokens", 5, 3), "other tokens than it was made of"),
        (damage("windows", (1, 3), 9), "do not fit"),
        (damage("windows", (1, 0), 7), "do not fit"),
        (damage("positions", 3, 127), "that it does not have"),
        (damage("positions", 3, -1), "that it does not have"),
        (lambda _: ({}, {"logits_base.output.width": 63}), r"should have a tensor 'states', F32"),
        (lambda _: ({}, {"logits_base.version": 2}), "version 2"),
        (lambda _: ({}, {"logits_base.n_ctx": "many"}), "is not valid in a base"),
        (lambda _: ({}, {"logits_base.precision": "float8"}), "precision"),
        (lambda _: ({}, {"general.type": "imatrix"}), "not a base"),
    ],
)
def test_a_file_that_lies_is_one_clear_line(measured, tmp_path, change, message):
    write(tmp_path / "base.gguf", measured)
    file = open_gguf(tmp_path / "base.gguf")
    tensors, keys = change(file)
    metadata = Metadata({key: file.metadata.value(key) for key in file.metadata})
    for key, value in keys.items():
        metadata.pop(key)
        metadata[key] = value
    gguftools.Model(metadata, {**file.tensors, **tensors}).save(tmp_path / "changed.gguf")
    with pytest.raises((FileError, OptionError), match=message):
        open_base(tmp_path / "changed.gguf")


@pytest.mark.parametrize("number", [-1, 1 << 20])
def test_a_likeliest_token_that_is_none(measured, tmp_path, number):
    write(tmp_path / "base.gguf", measured, top_k=3)
    file = open_gguf(tmp_path / "base.gguf")
    tensors, _ = damage("top.ids", (4, 1), number)(file)
    gguftools.Model(file.metadata, {**file.tensors, **tensors}).save(tmp_path / "changed.gguf")
    with pytest.raises(FileError, match="likeliest token outside its vocabulary"):
        open_base(tmp_path / "changed.gguf")


def test_what_is_done_to_logits_is_kept(tmp_path):
    rng = np.random.default_rng(1)
    weight = from_array("output.weight", rng.standard_normal((300, 64)).astype(np.float32))
    output = Output(weight, rng.standard_normal(300).astype(np.float32), 0.37, 3.0)
    window = Window(np.arange(8), np.array([2, 5]), np.array([3, 6]))
    run = Run({"a": [window]}, 8, "nowhere", "", "float32", output)
    from runtime.head import LazyLogits

    live = LazyLogits(rng.standard_normal((2, 64)).astype(np.float32), weight, output.finish(1))
    with saved_base(tmp_path / "base.gguf", run, with_output=True) as writer:
        writer.add(0, 0, 1, LazyLogits(live.x[:1], weight))
        writer.add(0, 1, 2, LazyLogits(live.x[1:], weight))
    stored = open_base(tmp_path / "base.gguf")
    assert np.array_equal(stored.source.logits(0, 0, 2), live.float32())
    assert "logits-base" in typed("show", tmp_path / "base.gguf").stdout
