"""Work that may take seconds shows how much is done, on a terminal alone and from its beginning."""

from __future__ import annotations

import io
import json
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gguftools.cli import streaming, terminal, ui
from gguftools.cli.streaming import prompt_progress
from gguftools.cli.ui import bytes_progress, window_progress
from quants.errors import GgufToolsError

from ..command_line import EXAMPLE, TEXT, program, typed
from ..publish.report.example import results

# Commands that end in less than two seconds, whatever they read: headers, a text, a table.
SHORT = {"architectures", "card", "chat-template", "fit", "formats", "schema", "show", "tokenize", "report"}
# Calls that show a bar. Words in capitals stand for files.
CALLS = (
    "attest QUANTIZED -o out.json",
    "attest QUANTIZED --verify STATEMENT",
    "audit MODEL --tensor-values",
    "chat MODEL",
    "convert CHECKPOINT -o out.gguf",
    "convert-endian MODEL -o out.gguf",
    "diff MODEL QUANTIZED",
    "diff MODEL QUANTIZED --errors",
    "diff MODEL QUANTIZED --identify",
    "divergence MODEL QUANTIZED -f TEXT --chunks 1 -c 64",
    "embed MODEL --pooling mean -p one -p two",
    "evaluate MODEL --hellaswag TASKS",
    "export MODEL -o out",
    "generate MODEL -p word -n 1",
    "graft MODEL -o out.gguf --drop-layers 1",
    "graph MODEL --values -p word",
    "graph MODEL --against QUANTIZED -p word",
    "hash MODEL",
    "hash MODEL --check HASHES",
    "imatrix MODEL -f TEXT -o out.gguf --chunks 1 -c 64",
    "imatrix-info MATRIX MATRIX",
    "merge SHARD -o out.gguf",
    "patch make MODEL QUANTIZED -o out.patch",
    "perplexity MODEL -f TEXT --chunks 1 -c 64",
    "perplexity MODEL QUANTIZED -f TEXT --chunks 1 -c 64",
    "quantize MODEL Q8_0 -o out.gguf",
    "release CHECKPOINT -o out --ladder none --also Q8_0 --imatrix TEXT --imatrix-chunks 2 -f TEXT --chunks 2",
    "reproduce QUANTIZED --source MODEL",
    "set-metadata COPY general.name=x --reserve 1M",
    "split MODEL -o out",
    "validate MODEL",
)
# Longer ones, by the library's function that they call with a callback.
HANDED_DOWN = {
    "check MODEL": "gguftools.inspection.original.check.check",
    "convert CHECKPOINT -o out.gguf --check-logits 1": "gguftools.inspection.original.logits_check.check_output",
    "demo -o out": "gguftools.conversion.demo.demo",
    "divergence MODEL QUANTIZED -f TEXT --chunks 1 -c 64 --html out.html": (
        "gguftools.inspection.weight_errors.weight_errors"
    ),
    "draft-check MODEL --draft-lookup": "gguftools.lab.drafts.draft_check",
    "fetch org/model": "gguftools.publish.hub.fetching.fetch",
    "gpu-split FOLDER --vram 1G": "gguftools.lab.gpu_split.gpu_split",
    "quantize MODEL --frontier 4": "gguftools.conversion.frontier.frontier",
    "upload CHECKPOINT org/model": "gguftools.publish.hub.uploading.upload",
}
Told = dict[str, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("progress")
    named = {name: folder / name.lower() for name in ("COPY", "HASHES", "STATEMENT", "TASKS", "RESULTS")}
    named |= {name: folder / f"{name.lower()}.gguf" for name in ("MODEL", "QUANTIZED", "MATRIX")}
    named |= {"CHECKPOINT": EXAMPLE, "TEXT": TEXT, "FOLDER": folder}
    template = "{% for each in messages %}{{ each.content }} {% endfor %}"
    made = (
        f"convert CHECKPOINT -o {folder}/plain.gguf",
        f"set-metadata {folder}/plain.gguf --chat-template {shlex.quote(template)} -o MODEL",
        "quantize MODEL Q8_0 -o QUANTIZED --manifest",
        "attest QUANTIZED -o STATEMENT",
        "hash MODEL -o HASHES",
        "imatrix MODEL -f TEXT -o MATRIX --chunks 1 -c 64",
        f"split MODEL -o {folder}/set --split-max-size 4M",
    )
    for call in made:
        done = typed(*(named.get(word, word) for word in shlex.split(call)))
        assert done.returncode == 0, f"{call}: {done.stderr}"
    shutil.copy(named["MODEL"], named["COPY"])
    named["TASKS"].write_text("Talking: They went\n2\nout.\nin.\naway.\nhome.\n")
    named["RESULTS"].write_text(json.dumps(results(1, passages=1)))
    return named | {"SHARD": next(folder.glob("set-00001-*"))}


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What each bar is called with: done and total, by its title."""
    told: Told = {}

    @contextmanager
    def bar(title: str, details: str, noted: Callable[[Any], str]) -> Iterator[Callable[[int, int, Any], None]]:
        calls = told.setdefault(title, [])

        def update(done: int, total: int, note: Any) -> None:
            noted(note)
            calls.append((done, total))

        yield update

    monkeypatch.setattr(ui, "_bar", bar)
    return told


@pytest.mark.parametrize("call", CALLS)
def test_long_work_shows_how_much_is_done(
    call: str, files: dict[str, Path], bars: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("word\n") if call.startswith("chat") else sys.stdin)
    done = typed(*(files.get(word, word) for word in call.split()))
    assert done.returncode in (0, 1), done.stderr
    assert "error:" not in done.stderr
    assert bars, "no bar is shown"
    for title, calls in bars.items():
        assert calls, f"{title}: nothing is counted"
        assert all(0 <= done <= total for done, total in calls), f"{title}: {calls}"
        assert calls[-1][0] >= 0.99 * calls[-1][1], f"{title} ends at {calls[-1]}"


@pytest.mark.parametrize("call", HANDED_DOWN)
def test_longer_work_is_given_a_callback(
    call: str, files: dict[str, Path], bars: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def work(*given: Any, **options: Any) -> Any:
        progress = options.get("progress") or given[-1]
        progress(0, 7, math.nan)
        raise GgufToolsError("enough is seen")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HANDED_DOWN[call], work)
    monkeypatch.setattr("gguftools.inspection.original.logits_check.require_checkable", lambda *_, **__: None)
    typed(*(files.get(word, word) for word in call.split()))
    assert [(0, 7)] in bars.values()


def test_every_command_is_short_or_shows_progress():
    shown = {call.split()[0] for call in (*CALLS, *HANDED_DOWN)}
    assert shown | SHORT == set(program().commands)
    assert not shown & SHORT


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]):
    with bytes_progress("read") as update, window_progress("measure", "PPL") as measured:
        update(1, 2, "a tensor")
        measured(1, 2, 3.0)
    assert capsys.readouterr() == ("", "")


def test_what_is_told_is_drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for name, value in {"TERM": "xterm", "COLUMNS": "90", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(terminal, "console", terminal.console.__wrapped__)  # one of its own, of this environment
    with window_progress("measure \x1b[1m[red]:smile:", "PPL") as update:
        update(3, 4, 12.5)
    drawn = capsys.readouterr().err
    assert "measure \\x1b[1m[red]:smile:" in drawn
    assert " 75% 3/4 PPL 12.5000 " in drawn
    with window_progress("measure", "PPL") as update:
        update(0, 4, math.nan)
    drawn = capsys.readouterr().err
    assert "  0% 0/4 " in drawn
    assert "PPL" not in drawn


def test_prompts_of_several_pieces_have_a_bar_while_they_are_read(monkeypatch: pytest.MonkeyPatch):
    shown: list[object] = []

    @contextmanager
    def bar(title: str) -> Iterator[Callable[[int, int, float], None]]:
        shown.append(title)
        yield lambda done, total, figure: shown.append((done, total))
        shown.append("gone")

    monkeypatch.setattr(streaming, "window_progress", bar)
    with prompt_progress() as update:
        for done, total in [(0, 9), (9, 9), (0, 8), (8, 8), (0, 2000), (1024, 2000), (2000, 2000), (0, 3000)]:
            update(done, total)
    title = "read the prompt"
    assert shown == [title, (0, 9), (9, 9), "gone", title, (1024, 2000), (2000, 2000), "gone"]
    shown.clear()
    with prompt_progress("load") as update:
        assert shown == ["load"]
        update(9, 9)
    assert shown == ["load", (9, 9), "gone"]
