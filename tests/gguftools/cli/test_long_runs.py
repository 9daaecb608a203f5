"""Progress bars fit their line and leave nothing; an interrupted run ends with 130."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ...conftest import ROOT
from ..command_line import EXAMPLE, TEXT, on_terminal, run

LONG = "a-model-with-quite-a-long-name-that-goes-on-and-on-Instruct-v0.3-f16.gguf"
FRAME = re.compile("\r([^\r\n]*)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    assert run("convert", EXAMPLE, "-o", LONG, cwd=path).returncode == 0
    return path


def plain(text: str) -> str:
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("columns", [60, 80])
def test_a_bar_has_room_beside_a_long_name(folder: Path, columns: int):
    code, written = on_terminal("validate", LONG, cwd=folder, columns=columns)
    frames = [plain(frame) for frame in FRAME.findall(written)]
    bars = [frame for frame in frames if "%" in frame]
    assert code == 0
    assert bars, "no bar was drawn"
    assert all(len(re.findall("[━─╸╺]", bar)) >= 10 for bar in bars)
    assert all(len(bar) < columns for bar in bars)
    assert all(frame.startswith("validate") and "…" in frame for frame in bars)
    assert "?" not in plain(written)


def test_nothing_constant_is_shown_while_an_imatrix_is_measured(folder: Path):
    (folder / "m.gguf").hardlink_to(folder / LONG)
    code, written = on_terminal("imatrix", "m.gguf", "-f", TEXT, "-o", "i.gguf", "--chunks", 4, cwd=folder)
    assert code == 0
    assert "0.0000" not in written


PHASES = {
    # what a signal comes in the middle of -> Python that sends it
    "importing": "class Sends:\n def find_spec(self, name, *rest):\n  if name == 'typer': send()\n"
    "sys.meta_path.insert(0, Sends())\n",
    "at work": "import gguftools.io.gguf.reader as reader\nreader.open_gguf = lambda *a, **b: send()\n",
    "at the end": "import atexit; atexit.register(send)\n",
}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupted_run_ends_with_the_signals_code(phase: str, number: int, code: int, folder: Path):
    script = f"import os, sys\ndef send(): os.kill(os.getpid(), {number:d}); [None for _ in range(10000)]\n"
    script += f"{PHASES[phase]}sys.argv = ['gguftools', 'hash', {LONG!r}]\n"
    script += "from gguftools.__main__ import main\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_compiling_is_interrupted_with_130_and_no_stale_line(folder: Path):
    with subprocess.Popen(
        [sys.executable, "-m", "gguftools", "quantize", LONG, "Q4_K_M", "-o", "cut.gguf"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(folder / "cold")},
    ) as process:
        while process.poll() is None and not (folder / "cold").exists():  # until it compiles, the cache being cold
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert not list(folder.glob("cut.gguf*"))
