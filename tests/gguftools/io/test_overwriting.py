"""No command writes over what it reads, or over what exists unless it is asked to."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from ...conftest import ROOT
from ..forks import Tool

EXAMPLE = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def made(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a text, an importance matrix, and a checkpoint."""
    folder = tmp_path_factory.mktemp("made")
    assert tool.run(folder, "convert", EXAMPLE, "-o", "m.gguf", "--outtype", "f16").code == 0
    (folder / "t").write_text((ROOT / "examples" / "persuasion.txt").read_text()[:8000])
    assert tool.run(folder, "imatrix", "m.gguf", "-f", "t", "-o", "k", "-c", 128, "--chunks", 1).code == 0
    shutil.copytree(EXAMPLE, folder / "ck")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "work")
    return tmp_path / "work"


def state(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


OVER_WHAT_IS_READ = [
    "hash m.gguf -o m.gguf",
    "imatrix m.gguf -f t -c 128 --chunks 1 -o m.gguf",
    "imatrix m.gguf -f t -c 128 --chunks 1 -o t",
    "imatrix-info k k --merge k",
    "quantize m.gguf Q4_0 --imatrix k -o k",
    "convert ck -o ck/model.safetensors",
    "convert ck -o ck/config.json",
    "convert ck -o ck/tokenizer.json",
]


@pytest.mark.parametrize("line", OVER_WHAT_IS_READ)
@pytest.mark.parametrize("spelled", ["as it is", "through a link", "by another name"])
def test_what_is_read_is_not_written(tool: Tool, folder: Path, line: str, spelled: str) -> None:
    *words, target = line.split()
    if spelled == "through a link":
        (folder / "link").symlink_to(folder / target)
        target = "link"
    elif spelled == "by another name":
        os.link(folder / target, folder / "name")
        target = "name"
    before = state(folder)
    plain = tool.run(folder, *words, target)
    assert plain.code == 1, plain.line
    asked = tool.run(folder, *words, target, "--overwrite")
    assert asked.code in (1, 2), asked.line
    assert "Traceback" not in plain.err + asked.err
    assert state(folder) == before


@pytest.mark.parametrize("name", ["x.partial", "x.partial.journal"])
def test_a_strangers_unfinished_file_is_left_alone(tool: Tool, folder: Path, name: str) -> None:
    shutil.copy(folder / "m.gguf", folder / name)
    source = name if name == "x.partial" else "m.gguf"
    before = state(folder)
    done = tool.run(folder, "quantize", source, "Q8_0", "-o", "x")
    assert done.code == 1, done.line
    assert len(done.err.strip().splitlines()) <= 2
    assert state(folder) == before


def test_a_strangers_merging_file_is_left_alone(tool: Tool, folder: Path) -> None:
    assert tool.run(folder, "split", "m.gguf", "-o", "s").code == 0
    shutil.copy(folder / "t", folder / "x.merging")
    before = state(folder)
    done = tool.run(folder, "merge", "s-00001-of-00001.gguf", "--free", "-o", "x")
    assert done.code == 1, done.line
    assert state(folder) == before


REPLACED = {
    "convert ck -o there": "there",
    "quantize m.gguf Q8_0 -o there": "there",
    "quantize m.gguf Q8_0": "m-Q8_0.gguf",
    "imatrix m.gguf -f t -c 128 --chunks 1 -o there": "there",
    "imatrix-info k --merge there": "there",
    "hash m.gguf -o there": "there",
    "demo ck -f t -o folder": "folder/ck-BF16.gguf",
}


@pytest.mark.parametrize("line", REPLACED)
def test_what_is_there_is_replaced_only_if_asked(tool: Tool, folder: Path, line: str) -> None:
    target = folder / REPLACED[line]
    target.parent.mkdir(exist_ok=True)
    target.write_text("mine")
    before = state(folder)
    done = tool.run(folder, *line.split())
    assert done.code == 1, done.line
    assert "--overwrite" in done.err
    assert state(folder) == before
    if not line.startswith("demo"):
        assert tool.run(folder, *line.split(), "--overwrite").code == 0
        assert target.read_bytes() != b"mine"
