"""Every command line in README and docs runs: those of a page one after the other, in one folder."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of a page's console sessions and Python examples."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(session: str) -> list[str]:
    """What was typed after "$ ", lines that end in a backslash joined."""
    typed = [line[2:] for line in session.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [line for line in typed if not line.startswith(("make ", "pip ", "pipx ", "uv ", "git ", "cd "))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a checkout to whoever types the commands."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_run(page: Path, folder: Path):
    for language, text in blocks(page):
        if language == "python":
            run([sys.executable, "-c", text], folder)
            continue
        for line in commands(text):
            assert line.startswith("gguftools "), f"{page.name} shows {line!r}"
            run([sys.executable, "-m", "gguftools", *shlex.split(line, comments=True)[1:]], folder)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command[2:]} failed: {done.stderr}"


def test_every_command_is_documented():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for path in sorted((ROOT / "gguftools" / "commands").glob("[a-z]*.py")):
        assert f"gguftools {path.stem.replace('_', '-')}" in pages, f"no page shows `gguftools {path.stem}`"
