"""How many threads numpy's matrix products use.

Our own threads each multiply their own tiles, so BLAS must not split a product again. Where it cannot be told so for
the whole process (an unknown BLAS, or one on OpenMP), products stay as they are and `controllable()` says so.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

_lock = threading.Lock()
_inside = 0
_before: list[int] = []


@cache
def libraries() -> tuple[Any, ...]:
    """threadpoolctl's controllers of the BLAS libraries in this process that can be told."""
    from threadpoolctl import ThreadpoolController

    loaded = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple(library for library in loaded if getattr(library, "threading_layer", "") != "openmp")


def controllable() -> bool:
    return bool(libraries())


def limit(counts: Sequence[int]) -> None:
    """Let each of `libraries` use so many threads."""
    for library, count in zip(libraries(), counts, strict=True):
        if library.num_threads != count:
            if hasattr(library, "clear_controlling_thread"):  # or it hears the first thread that set a limit alone
                library.clear_controlling_thread(force=True)
            library.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrix products inside run on the thread that asks for them. May be entered by several threads at once."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = [library.num_threads for library in libraries()]
            limit([1] * len(_before))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                limit(_before)
