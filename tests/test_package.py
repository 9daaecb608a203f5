"""The installed package has types, an example and a description."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from .conftest import ROOT


@pytest.mark.parametrize("package", ["archs", "gguftools", "quants", "runtime"])
def test_packages_are_marked_as_typed(package: str):
    assert (resources.files(package) / "py.typed").is_file()


def test_the_example_is_in_the_package():
    for name in ("austen-4m/config.json", "austen-4m/model.safetensors", "austen-4m/tokenizer.json", "persuasion.txt"):
        assert (resources.files("gguftools") / "examples" / name).is_file()


def test_the_project_says_what_it_is():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for part in ("classifiers", "keywords", "authors", "Typing :: Typed"):
        assert part in text


@pytest.mark.slow
def test_the_demo_runs_from_a_wheel(tmp_path: Path):
    pytest.importorskip("setuptools", reason="needed to build a wheel without the network")
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    building = "from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", f"import sys; {building}", str(tmp_path)], cwd=source, capture_output=True, text=True
    )
    wheel = tmp_path / built.stdout.splitlines()[-1]
    assert wheel.stat().st_size < 12_000_000
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "installed")], check=True)
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); sys.argv = ['gguftools', 'demo']\n"
    script += "import gguftools; assert 'installed' in gguftools.__file__\nfrom gguftools.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "demo").glob("*.gguf"))) == 4
