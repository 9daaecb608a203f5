"""Products and compiled graphs where vector registers are shorter, and where float16 has no instruction.

The tests of this folder and of compiled graphs run once more, in a process whose kernels are compiled for an older
processor of the same kind.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = (
    "kernels/test_attention_operations.py",
    "kernels/test_dots.py",
    "kernels/test_int16.py",
    "kernels/test_team.py",
    "test_attention.py",
    "test_state_mixers.py",
    "graph/test_compiled.py",
)
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c"}
SSE = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 processor")
@pytest.mark.parametrize("machine", [AVX2, SSE], ids=["AVX2", "SSE"])
def test_the_same_products(machine: dict[str, str], tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/runtime/{name}" for name in TESTS)],
        cwd=ROOT,
        env=os.environ | machine | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:]
