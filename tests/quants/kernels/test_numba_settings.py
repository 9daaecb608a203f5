"""Numba is imported whatever its settings in the environment are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

IMPORTS = "import quants.kernels.jit, runtime.kernels.thread_team, numba; print(numba.config.NUMBA_NUM_THREADS > 0)"


@pytest.mark.parametrize("value", ["0", "-3"])
def test_numbers_of_threads_that_numba_refuses(value: str) -> None:
    environment = {**os.environ, "NUMBA_NUM_THREADS": value}
    made = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=False)
    assert (made.stdout, made.returncode) == ("True\n", 0), made.stderr
