"""What our operations become on 64-bit Arm: assembly by LLVM, of the same source.

Shown: nothing of x86 is in what LLVM is given, it is translated for that processor, products of integers are vector
instructions (`smull` and `smull2`, summed in pairs by `addp`), so are those of floats (`fmla`), and nothing is left to
functions of a library but errors. Not shown: that it runs there, gives the same numbers, or how fast; LLVM optimized it
first as it does for the processor at hand, and numba's own choices on Arm may differ.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from runtime.kernels import dots
from runtime.kernels.dots import OF_FORMAT

ROOT = Path(__file__).resolve().parents[3]
TRIPLE = "aarch64-unknown-linux-gnu"
EXACT = ("F32", "F16", "BF16")
NAMES = {name: f"{name.lower()}_rows" for name in OF_FORMAT}
ERRORS = re.compile(r"numba_|Py|cfunc|_ZN7runtime7kernels|mem(cpy|set|move)$")


def assembly(cpu, *names):
    run = subprocess.run(
        [sys.executable, "-m", "tests.runtime.kernels.cross_compile", TRIPLE, cpu, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert list(found) == list(names)
    return [text.splitlines() for text in found.values()]


def instructions(lines):
    """How often each occurs, those of vectors by themselves."""
    words = [line.split(maxsplit=1) for line in lines if re.match(r"\t[a-z]", line)]
    vectors = Counter(word for word, *rest in words if rest and re.search(r"v\d+\.(16b|8h|4h|4s|2d)", rest[0]))
    return Counter(word for word, *_ in words), vectors


def check_products(name, lines):
    every, vectors = instructions(lines)
    assert vectors["fmla"] >= 4
    assert not [word for word in every if word.startswith(("vp", "vfm", "zmm"))]
    if name not in EXACT:
        assert vectors["smull"] == vectors["smull2"] == vectors["addp"] >= 4
        assert vectors["scvtf"] >= vectors["addp"]
        assert every["smull"] == vectors["smull"]  # none is a product of single numbers


def check_calls(lines):
    called = {line.split()[1] for line in lines if line.startswith("\tbl\t")}
    assert not [name for name in called if not ERRORS.match(name)]


def test_products_of_some_formats():
    names = ("Q8_0", "Q4_K", "F16", "IQ4_NL")
    found = assembly("cortex-a76", *(f"runtime.kernels.dots.{NAMES[name]}" for name in names))
    for name, lines in zip(names, found, strict=True):
        check_products(name, lines)
        check_calls(lines)


@pytest.mark.slow
def test_products_of_all_formats():
    assert all(getattr(dots, NAMES[name]) is operation for name, operation in OF_FORMAT.items())
    found = assembly("neoverse-v1", *(f"runtime.kernels.dots.{name}" for name in NAMES.values()))
    for name, lines in zip(NAMES, found, strict=True):
        check_products(name, lines)
        check_calls(lines)


@pytest.mark.slow
def test_what_stands_between_products():
    names = [f"token_parts.{name}" for name in ("rms_norm", "layer_norm", "silu", "gelu_tanh", "pack_rows")]
    names += ["head_operations.prepare_heads"]
    names += [f"attention_operations.{name}" for name in ("attend", "attend_blocks", "finish_heads")]
    found = assembly("cortex-a76", *(f"runtime.kernels.{name}" for name in names))
    for name, lines in zip(names, found, strict=True):
        _, vectors = instructions(lines)
        assert vectors["fmul"] + vectors["fmla"] > 0, name
        check_calls(lines)
