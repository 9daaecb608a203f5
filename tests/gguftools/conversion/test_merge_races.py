"""`merge --free` deletes only what it merged, also when it is started twice or resumed among other files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import ROOT
from ..forks import Tool

SHARDS = [f"s-{i:05d}-of-00004.gguf" for i in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def made(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its four shards."""
    folder = tmp_path_factory.mktemp("made")
    assert tool.run(folder, "convert", ROOT / "examples" / "austen-4m", "-o", "m.gguf", "--outtype", "f16").code == 0
    assert tool.run(folder, "split", "m.gguf", "-o", "s", "--split-max-tensors", 10).code in (0, 2)
    if not (folder / SHARDS[0]).exists():
        assert tool.run(folder, "split", "m.gguf", "-o", "s", "--max-tensors", 10).code == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "set")
    return tmp_path / "set"


def merge_until(folder: Path, count: int) -> subprocess.Popen[bytes]:
    """A merge that is stopped, not ended, when so many shards are left."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPS, str(count), "merge", SHARDS[0], "-o", "out.gguf", "--free"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    os.waitpid(process.pid, os.WUNTRACED)
    return process


# The merge stops itself before it deletes a shard when so many are left.
STOPS = """
import os, pathlib, signal, sys
count = int(sys.argv.pop(1))
remove = pathlib.Path.unlink
def unlink(path, missing_ok=False):
    left = len(list(pathlib.Path().glob("s-*.gguf")))
    if path.suffix == ".gguf" and path.name.startswith("s-") and left == count:
        os.kill(os.getpid(), signal.SIGSTOP)
    return remove(path, missing_ok)
pathlib.Path.unlink = unlink
from gguftools.__main__ import main
main()
"""


def whole(folder: Path) -> bytes:
    return (folder / "m.gguf").read_bytes()


@pytest.mark.parametrize("left", [4, 3])
def test_a_second_merge_takes_nothing_from_the_first(tool: Tool, folder: Path, left: int) -> None:
    first = merge_until(folder, left)
    second = tool.run(folder, "merge", SHARDS[0], "-o", "out.gguf", "--free")
    first.send_signal(signal.SIGCONT)
    assert first.wait(300) == 0, second.line
    assert second.code == 1
    assert "Traceback" not in second.err
    assert (folder / "out.gguf").read_bytes() == whole(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["m.gguf", "out.gguf"]


def test_no_shard_is_deleted_when_the_output_is_another_file(tool: Tool, folder: Path) -> None:
    """Its name went to another file, or to none, while it was filled."""
    first = merge_until(folder, 4)
    unfinished = folder / "out.gguf.merging"
    shutil.copy(folder / "m.gguf", folder / "other")
    (folder / "other").replace(unfinished)
    first.send_signal(signal.SIGCONT)
    first.wait(300)
    # The one that was about to be deleted when the name went is gone at most.
    assert [shard for shard in SHARDS[:3] if (folder / shard).exists()] == SHARDS[:3]


def test_a_shard_that_was_replaced_is_refused(tool: Tool, folder: Path) -> None:
    first = merge_until(folder, 3)
    first.kill()
    first.wait()
    assert tool.run(folder, "quantize", "m.gguf", "Q8_0", "-o", "other.gguf").code == 0
    for option in ("--split-max-tensors", "--max-tensors"):
        tool.run(folder, "split", "other.gguf", "-o", "t", option, 10)
    (folder / "t-00002-of-00004.gguf").replace(folder / SHARDS[1])
    shards = {name: (folder / name).exists() for name in SHARDS}
    done = tool.run(folder, "merge", SHARDS[0], "-o", "out.gguf", "--free")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert not (folder / "out.gguf").exists()
    assert {name: (folder / name).exists() for name in SHARDS} == shards
