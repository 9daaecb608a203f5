"""The functions that work is told to have a bar: nothing where there is no terminal."""

from __future__ import annotations

import sys

import pytest

from gguftools.console import terminal
from gguftools.console.ui import bytes_progress, window_progress


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
