"""The number of threads of numpy's matrix products.

Our own threads each multiply their own tiles, so BLAS must not split a product again. If that cannot be set for the
whole process (an unknown BLAS, or one on OpenMP), products stay as they are and `controllable()` returns False.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

_lock = threading.Lock()
_inside = 0
_before: list[int] = []


# The widest instructions of OpenBLAS's kernels, by their names in lower case; other kernels use all there are.
KERNELS = {
    "SSE": "generic katmai coppermine northwood prescott banias core2 dunnington penryn nehalem athlon opteron "
    "opteron_sse3 barcelona bobcat atom nano",
    "AVX": "sandybridge bulldozer piledriver steamroller",
    "AVX2": "haswell zen excavator",
}
LEVELS = (*KERNELS, "AVX-512")
LEVEL_OF = {kernel: level for level, kernels in KERNELS.items() for kernel in kernels.split()}
FEATURES = {"AVX-512": "avx512f", "AVX2": "avx2", "AVX": "avx"}  # LLVM's names


@cache
def _loaded() -> tuple[Any, ...]:
    """Return threadpoolctl's controllers of the BLAS libraries in this process."""
    from threadpoolctl import ThreadpoolController

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


@cache
def libraries() -> tuple[Any, ...]:
    """Return the libraries whose threads can be limited."""
    return tuple(library for library in _loaded() if getattr(library, "threading_layer", "") != "openmp")


def hindrance(threads: int) -> str | None:
    """Return what slows down the products of a measurement on this many threads, and what to do about it; None for
    nothing.

    A limit of threads only counts where BLAS uses its own: elsewhere our threads share the work, and
    OPENBLAS_NUM_THREADS changes nothing.
    """
    from quants.kernels.numba_internals import llvm

    features = llvm.get_host_cpu_features()
    able = next((level for level, feature in FEATURES.items() if features.get(feature)), "SSE")
    for library in _loaded():
        kernel = getattr(library, "architecture", None) or ""
        used = LEVEL_OF.get(kernel.lower(), able)
        if library.internal_api == "openblas" and LEVELS.index(used) < LEVELS.index(able):
            slow = f"OpenBLAS multiplies matrices with {used} (for {kernel}), though the processor has {able}"
            chosen = os.environ.get("OPENBLAS_CORETYPE")
            return f"{slow}: {f'unset OPENBLAS_CORETYPE={chosen}' if chosen else 'a newer numpy may know it'}"
    if controllable():
        return None
    for library in _loaded():
        names = [name for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
        if library.num_threads < threads and names:
            limits = " and ".join(f"{name}={os.environ[name]}" for name in names)
            return f"BLAS multiplies matrices with {library.num_threads} of {threads} threads: unset {limits}"
    return None


def controllable() -> bool:
    return bool(libraries())


def limit(counts: Sequence[int]) -> None:
    """Limit each of `libraries` to this many threads."""
    for library, count in zip(libraries(), counts, strict=True):
        if library.num_threads != count:
            if hasattr(library, "clear_controlling_thread"):  # else it only obeys the first thread that set a limit
                library.clear_controlling_thread(force=True)
            library.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run matrix products inside on the calling thread. May be entered by several threads at once."""
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
