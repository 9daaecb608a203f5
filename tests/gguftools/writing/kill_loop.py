"""Run by test_resume.py in a process of its own: quantize, be killed at a random moment, resume; again and again.

usage: kill_loop.py SOURCE FOLDER KILLS SEED. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from gguftools.conversion.quantize import quantize
from gguftools.writing.options import WriteOptions

RECIPES = ["Q4_K_M", "Q8_0"]


def run(source: Path, folder: Path, resume: bool) -> Any:
    return quantize(
        source,
        RECIPES,
        folder,
        write=WriteOptions(resume=resume, overwrite=True, memory=1 << 20, threads=2, statistics=True),
    )


def killed_after(seconds: float, source: Path, folder: Path, resume: bool, noted: bool = False) -> bool:
    """Whether the run was still going when it was killed. noted: after it has noted a row range, and then seconds."""
    child = os.fork()
    if not child:
        run(source, folder, resume)
        os._exit(0)
    while noted and not has_noted(folder) and os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def has_noted(folder: Path) -> bool:
    """Whether a journal has more than the line that says what the file is made of."""
    for path in folder.glob("*.journal"):
        try:
            if path.read_bytes().count(b"\n") > 1:
                return True
        except FileNotFoundError:
            pass
    return False


def figures(report: Any) -> Any:
    tensors = [tensor for output in report.outputs for tensor in output.tensors]
    return [(t.name, t.format, t.rmse, t.max_error) for t in tensors]


def main() -> None:
    source, folder, kills, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    wanted = folder / "wanted"
    wanted.mkdir()
    run(source, wanted, False)
    started = time.perf_counter()
    report = run(source, wanted, False)
    whole = time.perf_counter() - started
    expected = {path.name: path.read_bytes() for path in wanted.iterdir()}
    seen = {"killed": 0, "resumed": 0, "early": 0, "wrong": 0, "left": 0}
    for number in range(kills):
        out = folder / str(number)
        out.mkdir()
        noted = bool(number % 2)  # at any moment, and where there is something to go on with, on a slow machine, too
        while not killed_after(chance.uniform(0, whole / 4 if noted else whole), source, out, False, noted):
            for path in out.iterdir():
                path.unlink()
        seen["killed"] += 1
        finals = [path for path in out.iterdir() if path.suffix == ".gguf"]
        seen["early"] += any(path.read_bytes() != expected[path.name] for path in finals)
        if chance.random() < 0.3:
            killed_after(chance.uniform(0, whole), source, out, True)
        again = run(source, out, True)
        seen["resumed"] += again.resumed_bytes > 0
        got = {path.name: path.read_bytes() for path in out.iterdir()}
        seen["left"] += len(got) != len(expected)
        seen["wrong"] += got != expected or figures(again) != figures(report)
        for path in out.iterdir():
            path.unlink()
    print(json.dumps(seen))


main()
