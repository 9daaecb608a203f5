"""S7: a set of 59 shards where 64 files may be open ends in a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ..conftest import ROOT
from ..gguftools.models import metadata_of, write_model
from .forks import Tool

FIRST = "s-00001-of-00059.gguf"


@pytest.mark.parametrize(
    "line", [f"quantize {FIRST} Q8_0 -o q.gguf", f"hash {FIRST}", f"export {FIRST} --tensors x -o e.safetensors"]
)
def test_many_shards_and_few_open_files(tool: Tool, tmp_path: Path, line: str) -> None:
    tensors = {f"x.{i}.weight": np.ones((2, 32)) for i in range(59)}
    write_model(tmp_path / "m.gguf", metadata_of({"general.architecture": "llama"}), tensors)
    for option in ("--split-max-tensors", "--max-tensors"):
        tool.run(tmp_path, "split", "m.gguf", "-o", "s", option, 1)
    assert (tmp_path / FIRST).exists()
    command = shlex.join([sys.executable, "-m", "gguftools", *line.split()])
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 64; exec {command}"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    if done.returncode:
        assert "open files" in done.stdout + done.stderr
        assert "ulimit -n" in done.stdout + done.stderr
