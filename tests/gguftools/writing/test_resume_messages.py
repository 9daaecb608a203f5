"""`--resume` reports what it reused, and an unfinished file of the same output is mentioned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import ROOT
from ..forks import Tool

# Ends itself, as a kill would, when so many row ranges are noted.
DIES = """
import os, sys
write, ranges = os.write, []
def counted(fd, data):
    done = write(fd, data)
    if data.startswith(b"["):
        ranges.append(fd)
        if len(ranges) == 9:
            os._exit(9)
    return done
os.write = counted
from gguftools.__main__ import main
main()
"""


@pytest.fixture
def folder(tool: Tool, tmp_path: Path) -> Path:
    """A model, and what a killed run left of a file."""
    assert tool.run(tmp_path, "convert", ROOT / "examples" / "austen-4m", "-o", "m.gguf", "--outtype", "f16").code == 0
    done = subprocess.run(
        [sys.executable, "-c", DIES, "quantize", "m.gguf", "Q8_0", "-o", "x.gguf", "-j", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    assert (tmp_path / "x.gguf.partial").exists()
    return tmp_path


def test_what_was_reused_is_said(tool: Tool, folder: Path) -> None:
    done = tool.run(folder, "quantize", "m.gguf", "Q8_0", "-o", "x.gguf", "--resume", "-j", "1")
    assert done.code == 0, done.line
    assert "resumed: " in done.err
    assert "of tensor data come from an earlier run" in done.err


def test_a_file_that_is_not_taken_up_is_mentioned_where_it_is_of_the_same_output(tool: Tool, folder: Path) -> None:
    done = tool.run(folder, "quantize", "m.gguf", "Q8_0", "-o", "y.gguf")
    assert done.code == 0, done.line
    assert "x.gguf" not in done.err.replace("y.gguf", "")
    done = tool.run(folder, "quantize", "m.gguf", "Q8_0", "-o", "x.gguf")
    assert done.code == 0, done.line
    assert "--resume would have gone on from it" in done.err
