"""Edits that are killed: the file is the old one or a new one, whole, and its tensors are untouched.

The suite kills a few. Many more:

    python tests/fuzz/test_kills.py --count 200
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path

import numpy as np

from archs.metadata import Metadata
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.metadata.edit import EditOptions, set_metadata
from quants import format_named

from ..gguftools.tiny_models import create_gguf

ROOT = Path(__file__).resolve().parents[2]


def create(path: Path) -> str:
    """A file whose name and check are at the two ends of its header; the hash of its tensor."""
    metadata = Metadata()
    metadata["general.name"] = "0"
    metadata["tokens"] = [f"token {i}" for i in range(50_000)]
    metadata["check"] = check("0")
    infos = [TensorInfo("a", (500, 1024), format_named("F32"))]
    with create_gguf(path, plan_file(metadata, infos, reserve=1000)) as output:
        output.write(0, 0, np.random.default_rng(1).integers(0, 256, (500, 4096), np.uint8))
    return tensor_hash(path)


def check(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def tensor_hash(path: Path) -> str:
    return hashlib.sha256(open_gguf(path).tensors["a"].raw()).hexdigest()


def number_of(path: Path) -> int:
    """Which edit the file is from, all of it."""
    metadata = open_gguf(path).metadata
    assert metadata["check"] == check(metadata["general.name"])
    assert metadata["tokens"][49_999] == "token 49999"
    return int(metadata["general.name"].split()[0])


def edit_for_ever(path: Path) -> None:
    """Edit after edit, some in place, some by copying; says which has begun and which has ended."""
    chance = random.Random(os.getpid())
    for number in count(number_of(path) + 1):
        name = f"{number} " + "x" * chance.choice((1, 10, 300, 800, 1500))
        print("begin", number, flush=True)
        values = {"general.name": name, "check": check(name)}
        report = set_metadata(path, values, options=EditOptions(reserve=chance.choice((0, 0, 0, 1000))))
        print("end", number, "in place" if report.in_place else "copied", flush=True)


def last_edits(lines: list[str], old: int) -> tuple[int, int]:
    """The last edit that ended (`old` if none did), and the last that began, by what was said before the kill."""
    new = old
    for line in lines:
        if not line.endswith("\n"):  # cut short by the kill: this edit had not begun, or may have ended
            break
        new = int(line.split()[1])
        old = new if line.startswith("end") else old
    return old, new


def kill_one(path: Path, wait: float) -> str:
    """Start editing, kill it after `wait` seconds, recover: what was found."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    old = number_of(path)
    command = [sys.executable, "-m", "tests.fuzz.test_kills", "--edit", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    old, new = last_edits(lines, old)
    found = set_metadata(path, options=EditOptions(recover=True, roll_back=wait * 1e6 % 2 < 1)).recovered
    number = number_of(path)
    assert number in (old, new), f"edit {number}, not {old} or {new}"
    state = "between two edits" if old == new else "the old file" if number == old else "the new file"
    return f"{found}: {state}"


def kill_many(path: Path, times: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    expected = create(path)
    found: Counter[str] = Counter()
    for _ in range(times):
        found[kill_one(path, chance.uniform(0, 0.15))] += 1
        assert tensor_hash(path) == expected
    return found


def test_lines_that_a_kill_cut_short_say_nothing() -> None:
    lines = ["begin 11\n", "end 11 copied\n", "begin 12\n"]
    assert last_edits(lines, 10) == (11, 12)
    for cut in ("begin", "begin 1", "end", "end 1", "end 12 in pl"):
        assert last_edits([*lines, cut], 10) == (11, 12)
    assert last_edits([], 10) == last_edits(["beg"], 10) == (10, 10)


def test_killed_edits(tmp_path: Path) -> None:
    kill_many(tmp_path / "t.gguf", 6, 1)
    left = [file.name for file in tmp_path.iterdir() if file.name != "t.gguf"]
    assert all(name.endswith(".partial") for name in left), left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edit", type=Path, help="edit this file until killed")
    arguments = parser.parse_args()
    if arguments.edit:
        edit_for_ever(arguments.edit)
    with tempfile.TemporaryDirectory() as folder:
        for outcome, times in kill_many(Path(folder) / "t.gguf", arguments.count, arguments.seed).items():
            print(f"{times:6}  {outcome}")
        print("every file was whole, its tensors untouched")


if __name__ == "__main__":
    main()
