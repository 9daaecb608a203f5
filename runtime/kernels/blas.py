"""How many threads numpy's matrix products use.

Our own threads each multiply their own tiles, so BLAS must not split a product again. numpy has no call for that; its
OpenBLAS has, under a name that depends on how it was built. With any other BLAS, products stay as they are and
`controllable()` says so.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

SPELLINGS = [f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]

_lock = threading.Lock()
_inside = 0
_before = 1


@cache
def _calls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS' (get, set) of the number of threads, or None."""
    for path in _libraries():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for spelling in SPELLINGS:
            if hasattr(library, spelling.format("set")):
                return getattr(library, spelling.format("get")), getattr(library, spelling.format("set"))
    return None


def _libraries() -> list[str]:
    maps = Path("/proc/self/maps")
    if maps.exists():  # whatever this process has loaded, from a wheel or from the system
        return sorted(set(re.findall(r"/\S*openblas\S*", maps.read_text())))
    package = Path(np.__file__).parent
    folders = [package.parent / "numpy.libs", package / ".dylibs"]
    return [str(path) for folder in folders if folder.is_dir() for path in folder.glob("*openblas*")]


def controllable() -> bool:
    return _calls() is not None


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrix products inside run on the thread that asks for them. May be entered by several threads at once."""
    global _inside, _before
    calls = _calls()
    if calls is None:
        yield
        return
    get, limit = calls
    with _lock:
        if _inside == 0:
            _before = get()
            if _before != 1:
                limit(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _before != 1:
                limit(_before)
