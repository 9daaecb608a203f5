"""A file that is cut short while it is mapped ends the command with one line, not with a signal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ...conftest import ROOT
from ...template import without_notes_of_the_machine
from ..command_line import EXAMPLE, TEXT, run

COMMANDS = {
    "perplexity": ("perplexity", "m.gguf", "-f", "text"),
    "imatrix": ("imatrix", "m.gguf", "-f", "text", "-o", "out"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_model_cut_short_while_it_runs(name: str, tmp_path: Path) -> None:
    run("convert", EXAMPLE, "-o", "m.gguf", "--outtype", "bf16", cwd=tmp_path)
    os.mkfifo(tmp_path / "text")  # the model is open when the text is asked for
    with subprocess.Popen(
        [sys.executable, "-m", "gguftools", *COMMANDS[name]],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as command:
        text = _writable(tmp_path / "text", command)
        os.truncate(tmp_path / "m.gguf", 1 << 17)
        with os.fdopen(text, "wb") as pipe:
            pipe.write(TEXT.read_bytes())
        _, said = command.communicate(timeout=300)
    assert command.returncode == 1
    error, *_ = without_notes_of_the_machine(said).splitlines()
    assert error.startswith("error: m.gguf was cut short while it was read")
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def _writable(pipe: Path, command: subprocess.Popen[str]) -> int:
    """The end of a named pipe that the command reads from, as soon as it does."""
    while command.poll() is None:
        try:
            end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)
        else:
            os.set_blocking(end, True)
            return end
    raise AssertionError(f"it ended before: {command.communicate()[1]}")
