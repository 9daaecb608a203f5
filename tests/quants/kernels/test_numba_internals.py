"""One module knows numba's private parts, and says plainly when the installed numba lacks one."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quants.kernels.numba_internals import SUPPORTED, unusable

from ...conftest import ROOT

GONE = {
    "a module": "import sys; sys.modules['numba.core.ccallback'] = None",
    "a name": "import numba.core.codegen; del numba.core.codegen.JITCodeLibrary",
    "an attribute": "from numba.core import cgutils; del cgutils.get_or_insert_function",
    "a method": "from numba.core.dispatcher import _DispatcherBase; del _DispatcherBase.get_call_template",
    "all of llvmlite": "import sys; sys.modules['llvmlite'] = None",
}


def python(code: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )


@pytest.mark.parametrize("package", ["quants", "archs", "runtime", "gguftools"])
def test_no_other_module_imports_numba(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name == "numba_internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {name.partition(".")[0] for name in names} & {"numba", "llvmlite"}, path


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
def test_a_part_that_is_gone_is_one_plain_error(gone: str) -> None:
    done = python(
        f"{gone}\nfrom quants.errors import NumbaError\ntry:\n    import runtime.kernels.thread_team\n"
        "except NumbaError as error:\n    print(error, error.hint, sep='\\n')"
    )
    assert not done.stderr
    error, hint = done.stdout.splitlines()
    assert f"numba {importlib.metadata.version('numba')} " in error
    assert SUPPORTED in error
    assert hint == f"pip install 'numba{SUPPORTED}'"


def test_absent_numba_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert "not installed" in str(unusable(ImportError("No module named 'numba'")))


def test_the_command_line_prints_the_error(tmp_path: Path) -> None:
    code = f"{GONE['a module']}\nfrom gguftools.__main__ import main\nmain()"
    example = str(ROOT / "examples" / "austen-4m")
    done = python(code, "convert", example, "--outtype", "Q4_K_M", "--output", str(tmp_path / "out.gguf"), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: numba ")
    assert "Traceback" not in done.stderr
    assert "hint: pip install 'numba" in done.stderr


def test_the_supported_range_is_that_of_the_package() -> None:
    found = re.search(r'"numba(>=[^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None
    assert found[1] == SUPPORTED
