"""The numba decorators: kernels, and functions that exist only inlined into kernels.

numba optimizes each function and translates it to machine code, even if it is inlined wherever it is called; that is a
quarter of the compile time, for code that nobody calls. Our inlined functions are only lowered to LLVM IR; the kernel
is what is optimized and translated. numba has no option for that. If a release of it lacks the internals used here, the
functions are compiled in the usual way.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .numba_internals import PartCompiler, can_leave_out, compile_constants_once, njit, stamp_cache

_PART: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "nogil": True}
if can_leave_out():
    _PART["pipeline_class"] = PartCompiler

# A function that is always inlined into the kernels that call it; it cannot be called from Python. It has no reference
# counts of arrays, which would cost two calls wherever one is named: it must neither make arrays nor return any.
inlined = functools.partial(njit, error_model="numpy", _nrt=False, **_PART)


def inlined_once(function: Callable[..., Any]) -> Any:
    """Compile a function as `inlined`, but once for constants and variables alike, not again for every constant
    argument.

    For functions that do not select code by a constant; LLVM still finds the constants where it inlines.
    """
    return compile_constants_once(inlined(function))


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point on its first call, or load it from numba's cache. No fastmath: bytes must not vary.

    A kernel makes no arrays, which would take longer to compile. numba checks only the file of the function itself to
    see whether a cached kernel is out of date. Ours include functions from other files of this folder, so a change of
    any of these counts.
    """
    compiled = njit(nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)(function)
    stamp_cache(compiled, parts_changed(Path(function.__code__.co_filename).parent))
    return compiled


@functools.cache
def parts_changed(folder: Path) -> float:
    """Return when a file of this folder, of a format, or of the kernel's folder was last changed."""
    files = [*Path(__file__).parents[1].glob("*/*.py"), *folder.glob("*.py")]
    return max(file.stat().st_mtime for file in files)
