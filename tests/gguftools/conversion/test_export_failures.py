"""A failed `export`, as on a full disk, leaves nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import ROOT
from ..forks import Tool


@pytest.mark.parametrize("blocks", [1, 400])
def test_nothing_is_left_of_a_failed_export(tool: Tool, tmp_path: Path, blocks: int) -> None:
    """A limit of file size stands for the full disk."""
    assert tool.run(tmp_path, "convert", ROOT / "examples" / "austen-4m", "-o", "m.gguf", "--outtype", "f16").code == 0
    command = shlex.join([sys.executable, "-m", "gguftools", "export", "m.gguf", "-o", "hf"])
    done = subprocess.run(
        ["sh", "-c", f"trap '' XFSZ; ulimit -f {blocks}; exec {command}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
