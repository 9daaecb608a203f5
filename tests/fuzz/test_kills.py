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
from pathlib import Path

import numpy as np

from archs.metadata import Metadata, ValueType
from gguftools.files.gguf_edit import edit_metadata
from gguftools.files.gguf_reader import open_gguf
from gguftools.files.gguf_writer import TensorInfo, create_gguf, plan_file
from gguftools.files.journal import journal_path, recover
from quants import format_named

ROOT = Path(__file__).resolve().parents[2]


def create(path: Path) -> str:
    metadata = Metadata()
    metadata["general.name"] = "0"
    metadata["check"] = hashlib.sha256(b"0").hexdigest()
    metadata["tokens"] = [f"token {i}" for i in range(50_000)]
    infos = [TensorInfo("a", (500, 1024), format_named("F32"))]
    with create_gguf(path, plan_file(metadata, infos, reserve=1000)) as output:
        output.write(0, 0, np.random.default_rng(1).integers(0, 256, (500, 4096), np.uint8))
    return tensor_hash(path)


def tensor_hash(path: Path) -> str:
    return hashlib.sha256(open_gguf(path).tensors["a"].raw()).hexdigest()


def edit_for_ever(path: Path) -> None:
    """Edit after edit, some in place, some by copying; `check` belongs to `general.name`, at two ends of the header."""
    chance = random.Random(os.getpid())
    print("ready", flush=True)
    while True:
        metadata = open_gguf(path).metadata.copy()
        name = chance.choice("abc") * chance.choice((1, 10, 300, 800, 1500))
        metadata["general.name"] = name
        metadata.pop("check")
        metadata.set("check", hashlib.sha256(name.encode()).hexdigest(), ValueType.STRING)
        edit_metadata(path, metadata, reserve=chance.choice((0, 0, 0, 1000)))


def kill_one(path: Path, wait: float) -> str:
    """Start editing, kill it after `wait` seconds, recover: what was found."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, __file__, "--edit", str(path)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
    found = recover(path, roll_back=wait * 1e6 % 2 < 1) if journal_path(path).exists() else "no journal"
    metadata = open_gguf(path).metadata
    assert metadata["check"] == hashlib.sha256(metadata["general.name"].encode()).hexdigest()
    assert metadata["tokens"][49_999] == "token 49999"
    return found


def kill_many(path: Path, count: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    expected = create(path)
    found: Counter[str] = Counter()
    for _ in range(count):
        found[kill_one(path, chance.uniform(0, 0.15))] += 1
        assert tensor_hash(path) == expected
    return found


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
        for outcome, count in kill_many(Path(folder) / "t.gguf", arguments.count, arguments.seed).items():
            print(f"{count:6}  {outcome}")
        print("every file was whole, its tensors untouched")


if __name__ == "__main__":
    main()
