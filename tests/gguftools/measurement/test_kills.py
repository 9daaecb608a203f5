"""Measurements that are killed at any moment, and go on: what they find is what an undisturbed run finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.quantization.options import QuantizeOptions

from ...conftest import ROOT
from . import task_files

TEXT = ROOT / "examples" / "persuasion.txt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two layers of austen-4m."""
    folder = tmp_path_factory.mktemp("kills")
    for name in ("F16", "Q4_0"):
        convert(ROOT / "examples" / "austen-4m", folder / f"whole-{name}.gguf", name)
        quantize(
            folder / f"whole-{name}.gguf", "COPY", folder / f"{name}.gguf", options=QuantizeOptions(prune_layers=[2, 3])
        )
    task_files.write(folder)
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "divergence FOLDER/F16.gguf FOLDER/Q4_0.gguf -f TEXT -c 128 --chunks 24 --record record",
        "divergence FOLDER/F16.gguf FOLDER/Q4_0.gguf -f TEXT -c 128 --chunks 24 --record record --save-base base.gguf",
        "divergence FOLDER/F16.gguf -f TEXT -c 128 --chunks 24 --record record --save-base base.kld",
        "evaluate FOLDER/F16.gguf FOLDER/Q4_0.gguf --winogrande FOLDER/winogrande.csv"
        " --multiple-choice FOLDER/choices.bin --tasks 40 --record record",
    ],
    ids=["divergence", "our base", "llama.cpp's base", "evaluate"],
)
@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_any_moment(line: str, kills: int, folder: Path, tmp_path: Path) -> None:
    words = [*line.replace("TEXT", str(TEXT)).replace("FOLDER", str(folder)).split(), "--json", "-j", "1"]
    command = [sys.executable, str(Path(__file__).with_name("kill_loop.py")), str(tmp_path), str(kills), "1", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["killed"] >= kills
    assert seen["went on"]
    assert not any(seen[what] for what in ("lost", "early", "wrong", "left")), seen
