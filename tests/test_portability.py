"""No module needs what only POSIX has before it runs: commands work where `fcntl` and `resource` cannot be imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT

POSIX_ONLY = {
    "crypt",
    "curses",
    "fcntl",
    "grp",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "syslog",
    "termios",
    "tty",
}
BLOCKED = (
    "import sys\nsys.modules['fcntl'] = sys.modules['resource'] = None\nfrom gguftools.__main__ import main\nmain()\n"
)
EXAMPLE = ROOT / "examples" / "austen-4m"


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """Names of the modules that importing a module imports: not those that its functions import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            yield (child.module or "").partition(".")[0]
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported_at_once(child)


@pytest.mark.parametrize("package", ["quants", "archs", "runtime", "gguftools"])
def test_no_module_imports_what_only_posix_has(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        assert not POSIX_ONLY & set(imported_at_once(ast.parse(path.read_text(encoding="utf-8")))), path


def without_posix(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCKED, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_commands_run_without_fcntl_and_resource(tmp_path: Path) -> None:
    without_posix("convert", EXAMPLE, "--outtype", "F16", "--output", "a.gguf", cwd=tmp_path)
    without_posix("quantize", "a.gguf", "Q8_0", "--output", "b.gguf", cwd=tmp_path)
    without_posix("set-metadata", "b.gguf", "general.name=changed", cwd=tmp_path)
    without_posix("set-metadata", "b.gguf", "general.description=" + "x" * 5000, cwd=tmp_path)
    assert "changed" in without_posix("show", "b.gguf", cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]
