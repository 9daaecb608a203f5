"""Closed, full or ASCII-only output, pipes in place of files, and odd token types give no traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quants.errors import VocabularyError

from ...conftest import ROOT
from ..command_line import EXAMPLE, refused, run

ASCII = {"PYTHONIOENCODING": "ascii"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    assert run("convert", EXAMPLE, "-o", "model.gguf", cwd=path).returncode == 0
    return path


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("gguftools", f"{sys.executable} -m gguftools")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    "line",
    [
        "gguftools show model.gguf >&-",
        "gguftools hash model.gguf >&- 2>&-",
        "gguftools formats >&-",
        "gguftools --help > /dev/full",
    ],
)
def test_output_that_nobody_reads(line: str, folder: Path):
    done = shell(line, folder)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1
    assert done.returncode == ("full" in line)


def test_output_in_ascii_is_readable(folder: Path):
    done = run("show", "model.gguf", cwd=folder, environment=ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert "128 x 256" in done.stdout
    edit = ("set-metadata", "model.gguf", "general.name=Привет ×", "-o", "named.gguf")
    named = run(*edit, cwd=folder, environment=ASCII)
    assert (named.returncode, named.stderr) == (0, "")
    shown = run("show", "named.gguf", "--json", cwd=folder, environment=ASCII)
    assert json.loads(shown.stdout)["metadata"]["general.name"]["value"] == "Привет ×"
    assert "\\u041f" in run("show", "named.gguf", cwd=folder, environment=ASCII).stdout


@pytest.mark.parametrize("words", [("imatrix-info", "PIPE"), ("quantize", "model.gguf", "Q4_K_M", "--imatrix", "PIPE")])
def test_a_pipe_is_no_matrix(words: tuple[str, ...], folder: Path, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    arguments = [str(tmp_path / "pipe") if word == "PIPE" else word for word in words]
    refused(run(*arguments, cwd=folder, timeout=200), "")


def test_a_pipe_is_no_part_of_a_checkpoint(tmp_path: Path):
    shutil.copytree(EXAMPLE, tmp_path / "ck")
    (tmp_path / "ck" / "generation_config.json").unlink()
    os.mkfifo(tmp_path / "ck" / "generation_config.json")
    refused(run("convert", "ck", "-o", "m.gguf", cwd=tmp_path, timeout=200), "generation_config.json")


@pytest.mark.parametrize("kind", [-5, 0, 99, 1 << 40])
def test_token_types_that_there_are_not(kind: int, folder: Path):
    from archs.metadata import ValueType
    from archs.vocab.restore import restored_files
    from gguftools import open

    metadata = open(folder / "model.gguf").metadata.copy()
    metadata["tokenizer.ggml.model"] = "llama"
    metadata["tokenizer.ggml.scores"] = np.zeros(2048, np.float32)
    metadata.set("tokenizer.ggml.token_type", np.full(2048, kind), ValueType.ARRAY, ValueType.INT32)
    with pytest.raises(VocabularyError, match=f"token 0 is of type {kind}; types from 1 to 6 are known"):
        restored_files(metadata)
