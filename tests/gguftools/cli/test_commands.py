"""A command that another package brings: one module and an entry point, nothing of ours is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ...conftest import ROOT
from ..command_line import run

COMMAND = '''
"""`gguftools count-tensors`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

EXAMPLES = ("gguftools count-tensors model.gguf --json",)


def count_tensors(
    file: Annotated[Path, Argument(help="GGUF file.")], reserve: int | None = None, json: bool = False
) -> None:
    """Count the tensors of a GGUF file."""
    import gguftools
    from gguftools.cli.ui import print_json, print_line

    count = len(gguftools.open(file).tensors)
    print_json({"tensors": count, "reserve": reserve}) if json else print_line(f"{count} tensors")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package with the command, installed in a folder."""
    (tmp_path / "counting.py").write_text(COMMAND)
    info = tmp_path / "counting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gguftools.commands]\ncount-tensors = counting\n")
    return tmp_path


def test_a_command_of_another_package(folder: Path, golden_model: Path):
    path = {"PYTHONPATH": f"{ROOT}:{folder}"}
    called = run("count-tensors", golden_model, cwd=folder, environment=path)
    assert (called.stdout, called.stderr, called.returncode) == ("21 tensors\n", "", 0)
    as_json = run("count-tensors", golden_model, "--json", "--reserve", "2K", cwd=folder, environment=path)
    assert json.loads(as_json.stdout) == {"format_version": 1, "tensors": 21, "reserve": 2000}
    listed = run("--help", cwd=folder, environment=path).stdout
    assert "  count-tensors  Count the tensors of a GGUF file." in listed
    own = run("count-tensors", "-h", cwd=folder, environment=path).stdout
    assert "--reserve SIZE" in own
    assert own.endswith("Examples:\n  gguftools count-tensors model.gguf --json\n")
    wrong = run("count-tensors", golden_model, "--jsno", cwd=folder, environment=path)
    assert wrong.returncode == 2
    assert "did you mean --json?" in wrong.stderr
    absent = run("count-tensors", "absent.gguf", cwd=folder, environment=path)
    assert absent.returncode == 1
    assert absent.stderr.startswith("error: ")


def test_a_name_that_is_taken(folder: Path):
    (folder / "counting-1.0.dist-info" / "entry_points.txt").write_text("[gguftools.commands]\nshow = counting\n")
    done = run("--help", cwd=folder, environment={"PYTHONPATH": f"{ROOT}:{folder}"})
    assert done.returncode == 1
    assert "counting brings a command show, which there is already" in done.stderr


@pytest.fixture
def golden_model() -> Path:
    return ROOT / "tests" / "data" / "golden" / "e2e" / "tiny-dense-f16.gguf"
