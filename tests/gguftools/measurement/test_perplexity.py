"""Perplexity of a trained model against the reference's figures, to the last window."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import gguftools
from archs.metadata import Metadata, ValueType
from gguftools.conversion.convert import convert
from gguftools.measurement.options import PerplexityOptions
from gguftools.measurement.perplexities import perplexities
from gguftools.measurement.perplexity import context_warning, perplexity
from gguftools.measurement.texts import NamedText
from quants.errors import FileError, OptionError

from ...conftest import DATA, ROOT
from ..command_line import typed

TEXT = ROOT / "examples" / "persuasion.txt"
GOLDEN = json.loads((DATA / "golden" / "austen-4m.json").read_text())["perplexity"]
ALL = GOLDEN["F16"]["windows"]
CLOSE = {"F32": 2e-4, "F16": 2e-4, "BF16": 2e-4}  # activations stay float32; the reference's are rounded to 8 bits else


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(
    ("outtype", "windows"),
    [*((name, 8) for name in GOLDEN), ("F16", ALL), pytest.param("Q4_K_M", ALL, marks=pytest.mark.slow)],
)
def test_as_the_reference(outtype, windows, folder):
    file = convert(ROOT / "examples" / "austen-4m", folder / f"{outtype}-{windows}.gguf", outtype).outputs[0].file
    golden = GOLDEN[outtype]
    result = perplexity(file, TEXT, chunks=windows)
    assert result.perplexity == pytest.approx(golden["running"][windows - 1], rel=CLOSE.get(outtype, 3e-3))
    assert result.chunks == pytest.approx(golden["running"][:windows], rel=1e-2)
    if windows == golden["windows"]:
        assert result.perplexity == pytest.approx(golden["perplexity"], rel=CLOSE.get(outtype, 3e-3))
        assert result.standard_error == pytest.approx(golden["standard_error"], rel=1e-2)


@pytest.fixture(scope="module")
def model(folder):
    return convert(ROOT / "examples" / "austen-4m", folder / "model.gguf").outputs[0].file


def test_the_first_chunks_alone(model):
    assert perplexity(model, TEXT, chunks=3).chunks == pytest.approx(GOLDEN["BF16"]["running"][:3], rel=1e-3)


def test_overlapping_windows_give_more_context(model):
    apart, overlapping = (
        perplexity(model, TEXT, chunks=8),
        perplexity(model, TEXT, options=PerplexityOptions(stride=128), chunks=8),
    )
    assert overlapping.perplexity < apart.perplexity * 1.2


def test_activations_rounded_on_request(folder):
    """The reference's own figure for eight-bit weights, closer than with exact activations."""
    file = convert(ROOT / "examples" / "austen-4m", folder / "rounded.gguf", "q8_0").outputs[0].file
    golden = GOLDEN["Q8_0"]["running"][7]
    exact = perplexity(file, TEXT, chunks=8).perplexity
    rounded = perplexity(file, TEXT, chunks=8, options=PerplexityOptions(precision="llama.cpp")).perplexity
    assert abs(rounded - golden) < abs(exact - golden)
    assert perplexity(file, TEXT, chunks=8).perplexity == exact


def test_threads_change_nothing_of_note(model):
    one, two = (perplexity(model, TEXT, chunks=4, threads=n).perplexity for n in (1, 2))
    assert one == pytest.approx(two, rel=1e-6)


def test_several_texts(model, tmp_path):
    (tmp_path / "novel").write_text(TEXT.read_text(encoding="utf-8")[9000:18000], encoding="utf-8")
    alone = [perplexity(model, path, n_ctx=128, chunks=3) for path in (TEXT, tmp_path / "novel")]
    both = perplexity(model, {"a": TEXT, "b": tmp_path / "novel"}, n_ctx=128, chunks=3)
    assert [(each.name, each.file) for each in both.texts] == [("a", str(TEXT)), ("b", str(tmp_path / "novel"))]
    for each, own in zip(both.texts, alone, strict=True):
        assert (each.perplexity, each.standard_error, each.chunks, each.tokens) == (
            own.perplexity,
            own.standard_error,
            own.chunks,
            own.tokens,
        )
        assert [text.chunks for text in own.texts] == [own.chunks]
    assert both.perplexity == pytest.approx((alone[0].perplexity * alone[1].perplexity) ** 0.5, rel=1e-9)
    assert (len(both.chunks), both.tokens) == (6, 768)
    relative = [each.standard_error / each.perplexity for each in (both, *alone)]
    assert relative[0] == min(relative)


def test_the_command_with_several_texts(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ["-c", "128", "--chunks", "2"]
    done = typed("perplexity", model, "-f", f"a={TEXT}", "-f", f"b={TEXT}", *few)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["text", "windows", "perplexity"]
    assert lines[1].split()[1:] == lines[2].split()[1:]
    assert lines[4].startswith(f"perplexity  {lines[1].split()[2]} ± ")
    plain = json.loads(typed("perplexity", model, "-f", f"a={TEXT}", *few, "--json").stdout)
    assert plain["file"] == str(model)
    assert plain["texts"] == [
        {
            "name": "a",
            "file": str(TEXT),
            **{name: plain[name] for name in ("perplexity", "standard_error", "chunks", "tokens")},
        }
    ]
    twice = typed("perplexity", model, "-f", TEXT, "-f", TEXT)
    assert twice.returncode == 1
    assert "2 texts are called 'persuasion'" in twice.stderr


def test_what_it_does_not_read(model):
    with pytest.raises(OptionError, match="no text to read"):
        perplexity(model, [])
    with pytest.raises(OptionError, match=r"talk.jsonl is conversations"):
        perplexity(model, NamedText("talk", Path("talk.jsonl"), chat=True))


def test_windows_longer_than_the_model_was_made_for(model):
    opened = gguftools.open(model)
    longest = opened.metadata["llama.context_length"]
    said = context_warning(model, longest + 1)
    assert said is not None
    assert said.startswith(f"windows of {longest + 1} tokens are longer than the context of {longest} ")
    assert context_warning(model, longest) is None
    for wrong, kind in ((0, ValueType.UINT32), ("many", ValueType.STRING), (None, None)):
        metadata = Metadata({"general.architecture": "llama"})
        if kind is not None:
            metadata.set("llama.context_length", wrong, kind)
        assert context_warning(gguftools.Model(metadata, {}), 1 << 20) is None


def test_too_short_a_text(model, tmp_path):
    (tmp_path / "short.txt").write_text("It is a truth universally acknowledged")
    with pytest.raises(OptionError, match="at least 2"):
        perplexity(model, tmp_path / "short.txt")


def test_text_that_is_none(model, tmp_path):
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"binary\.txt is not UTF-8 text: byte 0 is 0xff"):
        perplexity(model, tmp_path / "binary.txt")
    with pytest.raises(FileError, match=r"absent\.txt cannot be read"):
        perplexity(model, tmp_path / "absent.txt")


def test_progress_knows_how_much_there_is_before_the_first_window(model):
    told = []
    perplexity(model, TEXT, n_ctx=64, chunks=3, progress=lambda *report: told.append(report))
    assert told[0][:2] == (0, 3)
    assert math.isnan(told[0][2])
    assert [each[0] for each in told] == [0, 1, 2, 3]


def test_several_files_are_one_table(model, tmp_path):
    small = gguftools.quantize(model, "Q4_0", tmp_path / "small.gguf").outputs[0].file
    missing = tmp_path / "missing.gguf"
    words = ["perplexity", model, missing, small, "-f", TEXT, "-c", "64", "--chunks", "3"]
    done = typed(*words, "--json")
    assert done.returncode == 1
    assert done.stderr.count("error:") == 1
    found = json.loads(done.stdout)
    assert [Path(each["file"]).name for each in found["files"]] == [Path(model).name, small.name]
    assert [each["file"] for each in found["failed"]] == [str(missing)]
    first, second = found["files"]
    assert first["difference"] is None
    assert second["difference"]["file"] == first["file"]
    assert second["difference"]["perplexity"] == second["perplexity"] - first["perplexity"]
    assert 0 < second["difference"]["standard_error"] < second["standard_error"]
    assert second["perplexity"] == perplexity(small, TEXT, n_ctx=64, chunks=3).perplexity
    assert second["size_bytes"] == small.stat().st_size
    assert 4 < second["bits_per_weight"] < first["bits_per_weight"]
    shown = typed(*words)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["file", Path(model).name, small.name]


def test_progress_counts_the_windows_of_all_files(model):
    told: list[tuple[int, int]] = []
    perplexities([gguftools.open(model)] * 2, TEXT, n_ctx=64, chunks=2, progress=lambda *at: told.append(at[:2]))
    assert told[0] == (0, 4)
    assert told[-1] == (4, 4)
    assert told == sorted(told)
