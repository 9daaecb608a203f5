"""A set of more shards than files may be open is read, or refused with a hint."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ....conftest import ROOT
from ...forks import Tool
from ...tiny_models import metadata_of, write_model

FIRST = "s-00001-of-00059.gguf"


@pytest.fixture(scope="module")
def folder(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shards."""
    folder = tmp_path_factory.mktemp("shards")
    tensors = {f"x.{i}.weight": np.ones((2, 32)) for i in range(59)}
    write_model(folder / "m.gguf", metadata_of({"general.architecture": "llama"}), tensors)
    tool.run(folder, "split", "m.gguf", "-o", "s", "--split-max-tensors", 1)
    assert (folder / FIRST).exists()
    return folder


@pytest.mark.parametrize(
    "line", [f"quantize {FIRST} Q8_0 -o q.gguf", f"hash {FIRST}", f"export {FIRST} --tensors x -o e.safetensors"]
)
def test_many_shards_and_few_open_files(folder: Path, line: str) -> None:
    command = shlex.join([sys.executable, "-m", "gguftools", *line.split()])
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 64; exec {command}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    if done.returncode:
        assert "open files" in done.stdout + done.stderr
        assert "ulimit -n" in done.stdout + done.stderr
