"""What a process of the command line does without, and that nothing is missing afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_constants_come_without_their_package() -> None:
    run(
        "import sys\n"
        "from gguftools.cli.startup import load_constants_alone\n"
        "load_constants_alone()\n"
        "from gguf.constants import Keys\n"
        "assert 'gguf' not in sys.modules\n"
        "import gguf\n"
        "assert gguf.Keys is Keys and gguf.GGUFWriter\n"
    )


def test_numba_leaves_scipy_alone() -> None:
    pytest.importorskip("scipy", reason="nothing to leave alone")
    run(
        "import sys\n"
        "from gguftools.cli.startup import keep_numba_from_scipy\n"
        "keep_numba_from_scipy()\n"
        "import numpy\n"
        "from quants import encode, decode\n"
        "values = numpy.linspace(-1, 1, 64, dtype=numpy.float32).reshape(1, 64)\n"
        "assert abs(decode('Q8_0', encode('Q8_0', values)) - values).max() < 0.01\n"
        "assert 'numba.np.arraymath' in sys.modules and 'scipy.linalg' not in sys.modules\n"
        "import scipy.linalg\n"
        "assert scipy.linalg.norm([3, 4]) == 5\n"
    )


def test_scipy_that_is_loaded_stays() -> None:
    pytest.importorskip("scipy", reason="nothing to leave alone")
    run(
        "import scipy.linalg, sys\n"
        "from gguftools.cli.startup import keep_numba_from_scipy\n"
        "keep_numba_from_scipy()\n"
        "import numba.np.arraymath\n"
        "assert numba.np.arraymath._HAVE_BLAS\n"
        "assert sys.modules['scipy.linalg'] is scipy.linalg\n"
    )
