"""The command and `gguftools.divergence` with bases of our own, and runs that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.measurement.divergence import divergence
from gguftools.measurement.options import DivergenceOptions
from gguftools.writing.resume import journal_path, partial_path
from quants.errors import FileError, OptionError
from runtime.evaluation.stored_logits import encode_rows

from ....conftest import ROOT
from ...command_line import typed

TEXT = ROOT / "examples" / "persuasion.txt"
CHOSEN = {"text": {"a": TEXT, "b": TEXT}, "n_ctx": 128, "chunks": 3}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    source = ROOT / "examples" / "austen-4m"
    return {name: convert(source, folder / f"{name}.gguf", name).outputs[0].file for name in ("F16", "Q4_0")}


def of_files(report):
    """What was measured, without what says where."""
    plain = report.as_dict() if not isinstance(report, dict) else report
    return json.dumps([{**file, "path": ""} for file in plain["files"]])


def test_a_saved_base_gives_the_same_figures(files, tmp_path):
    base = tmp_path / "base.gguf"
    live = divergence(files["F16"], files["Q4_0"], options=DivergenceOptions(save_base=base), **CHOSEN)
    again = divergence(base, files["Q4_0"])
    assert of_files(again) == of_files(live)
    assert [(text.name, text.file, text.windows) for text in again.texts] == [("a", None, 3), ("b", None, 3)]
    assert (again.base_perplexity, again.base_entropy) == (live.base_perplexity, live.base_entropy)
    named = divergence(base, files["Q4_0"], text={"a": TEXT, "b": TEXT})
    assert of_files(named) == of_files(live)
    fewer = divergence(base, files["Q4_0"], chunks=2)
    assert of_files(fewer) == of_files(divergence(files["F16"], files["Q4_0"], **{**CHOSEN, "chunks": 2}))


@pytest.mark.parametrize("form", [{}, {"top_k": 20}, {"with_output": True}])
def test_a_base_is_sound_and_no_model(files, tmp_path, form):
    base = tmp_path / "base.gguf"
    divergence(files["F16"], options=DivergenceOptions(save_base=base, **form), text=TEXT, n_ctx=128, chunks=2)
    report = gguftools.validate(base)
    assert (report.ok, [problem.severity for problem in report.problems]) == (True, ["note"])
    with pytest.raises(FileError, match="is a base of logits, not a model"):
        gguftools.quantize(base, "Q8_0", tmp_path / "q.gguf")


def test_a_base_that_does_not_fit_is_one_clear_line(files, tmp_path):
    base, other = tmp_path / "base.gguf", tmp_path / "other.txt"
    divergence(files["F16"], options=DivergenceOptions(save_base=base), text=TEXT, n_ctx=128, chunks=2)
    other.write_text("Something else. " * 200, encoding="utf-8")
    for text in (other, {"a": TEXT, "b": TEXT}):
        with pytest.raises(OptionError, match=r"base.gguf was made on .*other"):
            divergence(base, files["Q4_0"], text=text)
    with pytest.raises(OptionError, match="windows of 128 tokens, not 256"):
        divergence(base, files["Q4_0"], n_ctx=256)
    with pytest.raises(OptionError, match="at least 1"):
        divergence(base, files["Q4_0"], chunks=0)
    with pytest.raises(OptionError, match="nothing to compare"):
        divergence(base)
    with pytest.raises(OptionError, match="is a saved base already"):
        divergence(base, files["Q4_0"], options=DivergenceOptions(save_base=tmp_path / "again.gguf"))
    tokens = list(gguftools.open(files["Q4_0"]).metadata["tokenizer.ggml.tokens"])
    tokens[700] += "x"
    gguftools.set_metadata(files["Q4_0"], {"tokenizer.ggml.tokens": tokens}, output=tmp_path / "third.gguf")
    with pytest.raises(OptionError, match="of another vocabulary than"):
        divergence(base, tmp_path / "third.gguf")
    with pytest.raises(OptionError, match="is not a base in gguftools' format"):
        divergence(files["F16"], files["Q4_0"], options=DivergenceOptions(base_model=files["F16"]), **CHOSEN)


def test_top_k_is_called_a_bound(files, tmp_path):
    base = tmp_path / "base.gguf"
    live = divergence(files["F16"], files["Q4_0"], options=DivergenceOptions(save_base=base, top_k=20), **CHOSEN).files[
        0
    ]
    got = divergence(base, files["Q4_0"])
    file = got.files[0]
    assert file.lower_bound
    assert not live.lower_bound
    assert 0.5 * live.kl_divergence["mean"] < file.kl_divergence["mean"] < live.kl_divergence["mean"]
    for name in ("kl_reverse", "total_variation", "acceptance"):
        assert file.figures[name] == {"mean": None, "standard_error": None}
    for name in ("perplexity", "perplexity_ratio_standard_error", "same_top", "flips"):
        assert file.figures[name] == pytest.approx(live.figures[name], rel=1e-5)
    assert file.figures["entropy_change"]["mean"] == pytest.approx(live.figures["entropy_change"]["mean"], abs=1e-6)
    json.dumps(got.as_dict(), allow_nan=False)
    shown = call(base, files["Q4_0"])
    assert "≥ KL(base ‖ file)" in shown.stdout
    assert "unknown" in shown.stdout


def test_what_goes_with_which_form(files, tmp_path):
    for given in ({"top_k": 3}, {"with_output": True}):
        with pytest.raises(OptionError, match="needs a base in gguftools' format"):
            divergence(
                files["F16"],
                files["Q4_0"],
                options=DivergenceOptions(save_base=tmp_path / "base.kld", **given),
                **CHOSEN,
            )
    with pytest.raises(OptionError, match="cannot be two outputs at once"):
        divergence(
            files["F16"],
            options=DivergenceOptions(save_base=tmp_path / "base.kld", record=tmp_path / "base.kld"),
            **CHOSEN,
        )
    assert not list(tmp_path.iterdir())


def call(*words, check=True):
    done = typed("divergence", *words)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_an_interrupted_run_goes_on_at_its_window(files, tmp_path):
    base, record, whole = (tmp_path / name for name in ("base.gguf", "record", "whole.gguf"))
    want = divergence(files["F16"], files["Q4_0"], options=DivergenceOptions(save_base=whole), **CHOSEN)
    done = []

    def progress(number, count, mean):
        done.append(number)
        if number == 3:
            raise KeyboardInterrupt

    given = {"options": DivergenceOptions(save_base=base, record=record), **CHOSEN}
    with pytest.raises(KeyboardInterrupt):
        divergence(files["F16"], files["Q4_0"], progress=progress, **given)
    assert record.exists()
    assert partial_path(base).exists()
    assert not base.exists()
    with pytest.raises(FileError, match="is the record of another measurement"):
        divergence(files["F16"], files["Q4_0"], **{**given, "n_ctx": 64})
    with pytest.raises(FileError, match="is the record of another measurement"):
        divergence(files["F16"], files["F16"], **given)
    got = divergence(files["F16"], files["Q4_0"], **given)
    assert of_files(got) == of_files(want)
    assert base.read_bytes() == whole.read_bytes()
    assert not record.exists()
    assert not partial_path(base).exists()
    assert not journal_path(base).exists()


@pytest.mark.parametrize("name", ["base.gguf", "base.kld"])
def test_a_base_that_has_its_name_is_not_written_again(files, tmp_path, name):
    """A kill between naming the base and removing the record leaves both."""
    base, record = tmp_path / name, tmp_path / "record"
    given = {"options": DivergenceOptions(save_base=base, record=record), **CHOSEN}
    want = divergence(files["F16"], files["Q4_0"], **given | {"options": replace(given["options"], keep_record=True)})
    before, whole = base.stat(), record.read_bytes()
    partial_path(base).hardlink_to(base)  # as a kill in the middle of naming it leaves them
    journal_path(base).write_text(json.dumps({"gguftools": 1, "bytes": before.st_size}) + "\n")
    got = divergence(files["F16"], files["Q4_0"], **given)
    assert of_files(got) == of_files(want)
    assert (base.stat().st_ino, base.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    record.write_bytes(whole)
    base.write_bytes(base.read_bytes())
    with pytest.raises(FileError, match="already exists"):
        divergence(files["F16"], files["Q4_0"], **given)
    assert record.read_bytes() == whole


def test_a_refused_run_leaves_no_record(files, tmp_path):
    base = tmp_path / "base.gguf"
    base.write_text("mine")
    with pytest.raises(FileError, match="already exists"):
        divergence(files["F16"], options=DivergenceOptions(save_base=base, record=tmp_path / "record"), **CHOSEN)
    assert [path.name for path in tmp_path.iterdir()] == ["base.gguf"]
    for option in ("--record", "--save-base"):
        done = call(files["F16"], files["Q4_0"], option, tmp_path / "r", "--html", tmp_path / "r", check=False)
        assert done.returncode == 1
        assert "cannot be two outputs at once" in done.stderr


def test_a_report_that_cannot_be_written_costs_no_measurement(files, tmp_path):
    record = tmp_path / "record"
    words = [files["F16"], files["Q4_0"], "-f", TEXT, "-c", "128", "--chunks", "3", "--record", record]
    command = [sys.executable, "-m", "gguftools", "divergence", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.close()  # nobody reads what it prints
        child.communicate()
    assert record.read_bytes().count(b"\n") == 4
    assert "KL(base" in call(*words).stdout
    assert not record.exists()


def test_a_base_in_llama_cpps_form_goes_on_at_its_window(files, tmp_path, monkeypatch):
    base, record, whole = (tmp_path / name for name in ("base.kld", "record", "whole.kld"))
    divergence(files["F16"], options=DivergenceOptions(save_base=whole), **CHOSEN)

    def progress(number, count, mean):
        if number == 4:
            raise KeyboardInterrupt

    given = {"options": DivergenceOptions(save_base=base, record=record), **CHOSEN}
    with pytest.raises(KeyboardInterrupt):
        divergence(files["F16"], progress=progress, **given)
    assert not base.exists()
    lines = journal_path(base).read_text().splitlines()
    assert [json.loads(line)[0] for line in lines[1:]] == [0, 1, 2, 3]
    assert record.read_bytes().count(b"\n") == 5
    with partial_path(base).open("r+b") as file:
        file.seek(base_offset(whole, 1) + 40)
        file.write(b"damaged")
    with journal_path(base).open("a") as file:
        file.write('[6, 0]\n[-1, 0]\n[2.0, 0]\n["a", 0]\n[2]\n[2, 0]\n{"2": 0}\n7\n')
    told, encoded = [], []

    def encode(logits, threads):
        encoded.append(len(logits))
        return encode_rows(logits, threads)

    monkeypatch.setattr("gguftools.measurement.bases.llama_cpp.encode_rows", encode)
    divergence(files["F16"], progress=lambda number, *_: told.append(number), **given)
    assert told == [0, 1, 2, 3, 4, 5, 6]
    assert encoded == [63, 63, 63]  # the damaged one and the last two
    assert base.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.kld", "whole.kld"]


def base_offset(base, window):
    """Where a window's rows begin."""
    n_ctx, vocabulary, windows = np.fromfile(base, "<i4", 3, offset=8).tolist()
    return 20 + 4 * n_ctx * windows + window * 63 * (4 + 2 * ((vocabulary + 1) // 2)) * 2
