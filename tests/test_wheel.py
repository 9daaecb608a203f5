"""The wheel alone, in an environment of its own and an empty folder: the command and the scripts of the docs run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .conftest import ROOT
from .test_docs import blocks

SOURCES = ("archs", "examples", "gguftools", "quants", "runtime", "LICENSE", "README.md", "pyproject.toml")


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command} failed: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, which sees the dependencies of this one but not what is edited."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    run(*pip, "--python", python, "install", "-q", "--no-index", "--no-deps", wheel, cwd=folder)
    installed = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A path in a .pth file is searched, but the .pth files there, such as an editable install's, are not read.
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.mark.slow
def test_scripts_run_from_an_empty_folder(environment: Path, tmp_path: Path):
    where = run(environment / "python", "-c", "import gguftools; print(gguftools.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    assert run(environment / "gguftools", "--version", cwd=tmp_path)
    for language, text in blocks(ROOT / "docs" / "python.md"):
        assert language == "python"
        run(environment / "python", "-c", text, cwd=tmp_path)


@pytest.mark.slow
def test_the_texts_to_measure_on_are_in_it(environment: Path, tmp_path: Path):
    program = "from gguftools.measurement.texts import default_texts as d; print(*(t.path.stat().st_size for t in d()))"
    folder = ROOT / "gguftools" / "measurement" / "default_texts"
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.txt"))]
    assert run(environment / "python", "-c", program, cwd=tmp_path).split() == [str(size) for size in sizes]
