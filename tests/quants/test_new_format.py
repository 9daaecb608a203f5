"""What "Add a format" in CONTRIBUTING.md says: one file of another package brings a format; all else follows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FORMAT = '''
"""P8: 16 values as bytes from the lowest one on, in steps. 12 bits per weight.

    byte   0     4     8                             24
           | low | d   | qs[0]  qs[1]  ...   qs[15] |
           | f32 | f32 | u8                         |

    weight[i] = low + d * qs[i]
"""

import numpy as np

from quants.format import Format

BLOCK = np.dtype([("low", "<f4"), ("d", "<f4"), ("qs", "u1", 16)])


def bad_blocks(blocks):
    return ~np.isfinite(blocks["low"]) | ~np.isfinite(blocks["d"])


FORMAT = Format("P8", 1001, 16, BLOCK, codec=__name__, fallback="F16", activations="Q8_0", bad_blocks=bad_blocks)


def encode(form, rows, importance):
    values = rows.reshape(-1, 16)
    blocks = np.empty(len(values), BLOCK)
    blocks["low"], blocks["d"] = values.min(1), np.ptp(values, 1) / 255
    steps = np.where(blocks["d"] > 0, blocks["d"], 1)[:, None]
    blocks["qs"] = np.rint((values - blocks["low"][:, None]) / steps)
    return blocks.view(np.uint8).reshape(len(rows), -1)


def decode(form, raw):
    blocks = raw.reshape(-1).view(BLOCK)
    return (blocks["low"][:, None] + blocks["d"][:, None] * blocks["qs"]).reshape(len(raw), -1)
'''

SCRIPT = """
import runpy
import sys
import numpy as np
import gguftools
import quants
from gguftools.inspection.validation import find_bad_blocks

def command(*arguments):
    sys.argv = ["gguftools", *arguments]
    try:
        runpy.run_module("gguftools", run_name="__main__")
    except SystemExit as end:
        assert not end.code, arguments

rows = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
step = np.ptp(rows.reshape(8, 16, 16), 2).repeat(16, 1) / 255
assert quants.encode("p8", rows).shape == (8, 16 * 24)
assert (abs(quants.decode("P8", quants.encode("P8", rows)) - rows) <= 0.51 * step).all()

names = "blk.0.ffn_up.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_down.weight"
keys = {"general.architecture": "llama"}
gguftools.Model(keys, dict(zip(names, (rows, rows, rows[:, :40])))).save("first.gguf")
command("quantize", "first.gguf", "Q8_0", "-o", "second.gguf", "--tensor-type", "ffn_(up|down)=P8")
command("convert-endian", "second.gguf", "big", "-o", "third.gguf")
for name in ("second.gguf", "third.gguf"):
    with gguftools.open(name) as model:
        assert not find_bad_blocks(model.tensors.values())
        assert [model.tensors[name].format.name for name in names] == ["P8", "Q8_0", "F16"]
        assert (abs(model.tensors[names[0]].float32() - rows) <= 0.51 * step).all()
command("show", "second.gguf")
command("formats")
"""
METADATA = "Metadata-Version: 2.1\nName: p8\nVersion: 1.0\n"


def run(site: Path, module: str, script: str) -> subprocess.CompletedProcess[str]:
    """With an installed distribution: a module, and metadata with an entry point that names it."""
    info = site / "p8-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "p8.py").write_text(module)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[gguftools.formats]\np8 = p8\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=site, env=environment)


def test_a_package_brings_a_format(tmp_path: Path) -> None:
    done = run(tmp_path / "site", FORMAT, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "P8" in done.stdout


@pytest.mark.parametrize(("found", "claim"), [('"P8", 1001', '"Q4_0", 1001'), ('"P8", 1001', '"P8", 2')])
def test_it_cannot_take_the_name_or_number_of_another(found: str, claim: str, tmp_path: Path) -> None:
    script = "from quants.format import formats\ntry: formats()\nexcept Exception as error: print(error)"
    done = run(tmp_path / "site", FORMAT.replace(found, claim), script)
    assert "is taken by Q4_0" in done.stdout, done.stderr


def test_facts_of_formats_are_read_without_compiler_or_codecs() -> None:
    script = (
        "import sys; from quants.format import format_of_type\n"
        "assert format_of_type(12).row_bytes(256) == 144\n"
        "assert not {'numba', 'gguf', 'importlib.metadata'} & set(sys.modules)\n"
        "assert not any(name.startswith('quants.kernels.') for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
