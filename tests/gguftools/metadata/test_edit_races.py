"""Edits of one file at the same time neither damage it nor get lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import gguftools

from ...conftest import ROOT
from ..forks import Done, Tool

ROUNDS = 10


@pytest.fixture(scope="module")
def model(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    done = tool.run(folder, "convert", ROOT / "examples" / "austen-4m", "-o", "m.gguf", "--reserve", "4K")
    assert done.code == 0, done.line
    return folder / "m.gguf"


def edit(key: str, value: str) -> list[str]:
    return ["set-metadata", "m.gguf", f"general.{key}={value}"]


@pytest.mark.parametrize(
    ("edits", "apart"),
    [
        ([edit("author", "a"), edit("organization", "b"), edit("version", "c"), edit("url", "d")], 0.0),
        ([edit("author", "a"), edit("organization", "b" * 9000)], 0.0),
        ([edit("author", "a" * 9000), edit("organization", "b")], 0.004),
        ([edit("author", "a"), edit("organization", "b" * 9000), edit("version", "c")], 0.001),
    ],
    ids=["in place", "in place, by a copy", "by a copy, in place", "three"],
)
def test_edits_at_once(tool: Tool, model: Path, tmp_path: Path, edits: list[list[str]], apart: float) -> None:
    lost: list[str] = []
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(model, folder / "m.gguf")
        done = tool.together(folder, *edits, apart=apart)
        lost += losses(folder, done)
        shutil.rmtree(folder)
    assert not lost


def losses(folder: Path, done: list[Done]) -> list[str]:
    """What is wrong after edits that began together."""
    found = [each.line for each in done if each.code not in (0, 1) or "Traceback" in each.err]
    found += [path.name for path in folder.iterdir() if path.name != "m.gguf"]
    if all(each.code for each in done):
        found.append(f"none was done: {[each.line for each in done]}")
    try:
        stored = gguftools.open(folder / "m.gguf").metadata
    except gguftools.GgufToolsError as error:
        return [*found, str(error)]
    for each in done:
        key, _, value = each.arguments[-1].partition("=")
        if each.code == 0 and stored.get(key) != value:
            found.append(f"{key} is lost")
    return found
