"""Where test data is: copies in tests/data, the rest in the folder GGUFTOOLS_SHARED (default ../shared)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data"
SHARED = Path(os.environ.get("GGUFTOOLS_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared material; the test is skipped where it is absent (in CI that is a failure)."""
    if not SHARED.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"CI has no {SHARED}")
        pytest.skip(f"needs the shared material in {SHARED} (set GGUFTOOLS_SHARED)")
    return SHARED
