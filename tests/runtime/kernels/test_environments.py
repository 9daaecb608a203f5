"""Tests also pass with another BLAS, and when kernels come from numba's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ...conftest import ROOT

JIT = "tests/quants/kernels/test_jit.py"


def passes(test: str, environment: dict[str, str]) -> None:
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, test],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_state_spaces_on_another_blas() -> None:
    passes("tests/runtime/mixers/test_state_space.py", {"OPENBLAS_CORETYPE": "Haswell"})


def test_kernels_from_the_cache(tmp_path: Path) -> None:
    """One test alone, where nothing was compiled; all where some kernels come from the cache, and where all do."""
    for test in (f"{JIT}::test_parts_are_neither_optimized_nor_translated", JIT, JIT):
        passes(test, {"NUMBA_CACHE_DIR": str(tmp_path)})
