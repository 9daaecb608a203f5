"""The functions that work is told to have a bar: nothing where there is no terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gguftools.cli import streaming, terminal
from gguftools.cli.streaming import prompt_progress
from gguftools.cli.ui import bytes_progress, window_progress


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]):
    with bytes_progress("read") as told, window_progress("measure", "PPL") as measured:
        told(1, 2, "a tensor")
        measured(1, 2, 3.0)
    assert capsys.readouterr() == ("", "")


def test_what_is_told_is_drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for name, value in {"TERM": "xterm", "COLUMNS": "90", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(terminal, "console", terminal.console.__wrapped__)  # one of its own, of this environment
    with window_progress("measure \x1b[1m[red]:smile:", "PPL") as told:
        told(3, 4, 12.5)
    drawn = capsys.readouterr().err
    assert "measure \\x1b[1m[red]:smile:" in drawn
    assert " 75% 3/4 PPL 12.5000 " in drawn
    with window_progress("measure", "PPL") as told:
        told(0, 4, math.nan)
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
    with prompt_progress() as tell:
        for done, total in [(0, 9), (9, 9), (0, 2000), (1024, 2000), (2000, 2000), (0, 3000), (1024, 3000)]:
            tell(done, total)
    first, title = ["read the prompt", (1024, 2000), (2000, 2000), "gone"], "read the prompt"
    assert shown == [*first, title, (1024, 3000), "gone"]
