"""Completion by the shell: of values, and its installation for bash, zsh and fish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gguftools.cli.completion import VALUES
from gguftools.cli.options import COMPLETED

from ...conftest import ROOT
from ..command_line import EXAMPLE, run

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("completion")
    assert run("convert", EXAMPLE, "-o", path / "model.gguf", cwd=path).returncode == 0
    return path


def called(words: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gguftools", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), **environment},
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def completed(line: str, folder: Path, shell: str = "bash") -> list[str]:
    """What the shell is given for a line whose last word is incomplete, as its script asks for it."""
    if shell == "bash":  # which makes = a word of its own
        words = line.replace("=", " = ").split(" ")
        asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    else:
        asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found = called([], folder, _GGUFTOOLS_COMPLETE=f"complete_{shell}", **asked)
    values = found.removeprefix("_arguments '*: :((").removesuffix("))'\n").splitlines()
    return (
        []
        if values in ([""], ["_files"])
        else [value.partition("\t")[0].partition(":")[0].strip('"') for value in values]
    )


LINES = {  # -> a value that is offered, and one that is not
    "gguftools quantize model.gguf q4_k": ("q4_k_m", "Q4_K_M"),
    "gguftools quantize -m model.gguf Q4_K": ("Q4_K_M", "Q8_0"),
    "gguftools convert folder --outtype ": ("bf16", "Q4_9"),
    "gguftools quantize model.gguf --output-tensor-type Q6": ("Q6_K", "Q4_K"),
    "gguftools show model.gguf --key general.": ("general.name", "llama.block_count"),
    "gguftools set-metadata model.gguf --remove llama.": ("llama.block_count", "general.name"),
    "gguftools set-metadata model.gguf general.na": ("general.name", "llama.block_count"),
    "gguftools evaluate model.gguf --precision ll": ("llama.cpp", "exact"),
    "gguftools audit model.gguf --fail-on ": ("high", "dire"),
    "gguftools diff a b --sort ": ("rmse", "best"),
    "gguftools convert-endian model.gguf ": ("big", "huge"),
    "gguftools patch ": ("make", "do"),
    "gguftools show -m model.gguf --key gen": ("general.name", "llama.block_count"),
    "gguftools quan": ("quantize", "convert"),
    "gguftools quantize model.gguf --allow": ("--allow-requantize", "--imatrix"),
}


@pytest.mark.parametrize("line", LINES)
def test_values_are_completed(line: str, folder: Path):
    offered, other = LINES[line]
    found = [each.removesuffix("=") for each in completed(line, folder)]
    assert offered in found
    assert other not in found


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_completes(shell: str, folder: Path):
    assert "Q4_K_M" in completed("gguftools quantize model.gguf Q4_K", folder, shell)
    found = completed("gguftools set-metadata model.gguf general.architecture=qwen3m", folder, shell)
    assert found in (["qwen3moe"], ["general.architecture=qwen3moe"])


def test_a_file_that_cannot_be_read_has_no_keys(folder: Path):
    assert completed("gguftools show absent.gguf --key general.", folder) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed(shell: str, folder: Path, tmp_path: Path):
    said = called(
        ["--install-completion", shell], tmp_path, HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert f"{shell} completion installed" in said
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and "_GGUFTOOLS_COMPLETE" in path.read_text()]
    assert scripts
    if shutil.which(shell):
        subprocess.run([shell, "-n", *scripts], check=True)


def test_every_kind_of_value_that_is_named_is_known():
    assert set(COMPLETED.values()) <= set(VALUES)
