"""Texts that a search writes, as `llama-quantize --tensor-type-file` takes them.

Recorded is what llama-quantize (llama.cpp b11434) made of the example with a text of a search for 2,500,000 bytes and
the matrix below: of each tensor its format, and the SHA-256 of its bytes. `record` did that.
"""

import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.io.gguf.reader import open_gguf
from gguftools.quantization.imatrix import ImportanceMatrix, write_imatrix
from gguftools.quantization.imatrix_entry import Entry

from ...conftest import DATA
from ..command_line import EXAMPLE

RECORDED = DATA / "llama_quantize_recipe.json"


def source_and_matrix(folder):
    """The example, and a matrix whose importances are whole numbers."""
    base = gguftools.convert(EXAMPLE, folder / "base.gguf", "F16").outputs[0].file
    entries = {
        name: Entry((1 + np.arange(tensor.width) * 7 % 13).astype(np.float32)[None], np.ones(1, np.float32))
        for name, tensor in open_gguf(base).tensors.items()
        if len(tensor.shape) == 2
    }
    matrix = folder / "matrix.gguf"
    write_imatrix(ImportanceMatrix(matrix, entries, ("none",), 1, 512), matrix)
    return base, matrix


def facts(path):
    """Name → format and digest."""
    return {
        name: [tensor.format.name, hashlib.sha256(tensor.raw(0, tensor.rows).tobytes()).hexdigest()[:16]]
        for name, tensor in open_gguf(path).tensors.items()
    }


def record(program: str, text: Path, folder: Path) -> None:
    """Run by hand: program is llama-quantize, text a recipe."""
    base, matrix = source_and_matrix(folder)
    out = folder / "out.gguf"
    options = ["--imatrix", matrix, "--tensor-type-file", text, base, out, "Q4_K_M", "1"]
    subprocess.run([program, *map(str, options)], check=True)
    found = {"recipe": text.read_text().splitlines(), "tensors": facts(out)}
    RECORDED.write_text(json.dumps(found, indent=0) + "\n")


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORDED.read_text())


def test_llama_quantize_gave_the_formats_of_the_text(recorded):
    rules = dict(line.split("=") for line in recorded["recipe"] if line.startswith("^"))
    assert len(rules) == 29
    for pattern, form in rules.items():
        assert recorded["tensors"][pattern[1:-1].replace("\\", "")][0] == form


def test_our_file_has_the_same_bytes(recorded, tmp_path):
    base, matrix = source_and_matrix(tmp_path)
    text = tmp_path / "recipe.txt"
    text.write_text("\n".join(recorded["recipe"]))
    output = gguftools.quantize(base, str(text), tmp_path / "out.gguf", imatrix=matrix).outputs[0]
    assert facts(output.file) == recorded["tensors"]
