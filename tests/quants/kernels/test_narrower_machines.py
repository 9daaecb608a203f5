"""The same bytes where vector registers are shorter: golden blocks with kernels compiled for a processor with AVX2."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 processor")
def test_golden_blocks_with_avx2_alone(tmp_path: Path):
    chosen = "gives_the_reference and (Q4_0 or Q4_1 or Q8_0 or Q3_K or Q4_K or Q6_K or F16)"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/quants/test_golden_blocks.py", "-k", chosen],
        cwd=ROOT,
        env=os.environ | AVX2 | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
