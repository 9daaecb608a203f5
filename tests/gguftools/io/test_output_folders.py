"""`-o folder/` makes the folder or names it in an error; it never writes a file of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...conftest import ROOT
from ..forks import Tool

EXAMPLE = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def model(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    assert tool.run(folder, "convert", EXAMPLE, "-o", "m.gguf", "--outtype", "f16").code == 0
    return folder / "m.gguf"


NOT_THERE = [
    "convert {example}",
    "quantize {model} Q8_0",
    "set-metadata {model} general.name=x",
    "hash {model}",
    "convert-endian {model}",
]


@pytest.mark.parametrize("line", NOT_THERE)
def test_a_folder_that_is_not_there(tool: Tool, model: Path, tmp_path: Path, line: str) -> None:
    words = line.format(model=model, example=EXAMPLE).split()
    done = tool.run(tmp_path, *words, "-o", "folder/")
    assert not (tmp_path / "folder").is_file()
    assert done.code == (0 if (tmp_path / "folder").is_dir() else 1)
    assert "Traceback" not in done.err
    assert len(list(tmp_path.rglob("*.gguf"))) == (1 if done.code == 0 else 0)
    assert not (tmp_path / "folder").is_dir() or done.code == 0


@pytest.mark.parametrize("line", ["split {model}", "split {model} --overwrite"])
def test_a_folder_that_is_there(tool: Tool, model: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "folder").mkdir()
    done = tool.run(tmp_path, *line.format(model=model).split(), "-o", "folder/")
    assert done.code == 0, done.line
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["m-00001-of-00001.gguf"]
