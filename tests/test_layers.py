"""The import rule: quants ← archs ← runtime ← gguftools, never upwards; console output in gguftools alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .conftest import ROOT

BELOW = {
    "quants": {"quants"},
    "archs": {"quants", "archs"},
    "runtime": {"quants", "archs", "runtime"},
    "gguftools": {"quants", "archs", "runtime", "gguftools"},
}
FILES = [path for package in BELOW for path in sorted((ROOT / package).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """The top-level packages of ours that a file imports absolutely, at any depth."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names & set(BELOW)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_only(path: Path):
    package = path.relative_to(ROOT).parts[0]
    assert imported(path) <= BELOW[package]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_commands_print(path: Path):
    relative = path.relative_to(ROOT).as_posix()
    if relative.startswith("gguftools/commands/") or relative in {"gguftools/console/ui.py", "gguftools/__main__.py"}:
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id in {"print", "input"}]


def test_there_are_files_to_check():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(BELOW)
