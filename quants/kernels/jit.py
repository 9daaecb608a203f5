"""What numba makes of our functions: kernels, and functions that exist only as parts of kernels.

numba optimizes each function and translates it to machine code, also one that is inlined wherever it is called: work
that nobody uses, and a quarter of the time that compiling takes. Our inlined functions are only lowered to LLVM's
language; the kernel is what is optimized and translated. numba has no option for that; where a release of it should
lack what we change, the functions are compiled in its usual way.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .numba_internals import PartCompiler, can_leave_out, compile_constants_once, njit, stamp_cache

_PART: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "nogil": True}
if can_leave_out():
    _PART["pipeline_class"] = PartCompiler

# A function that is always inlined into the kernels that call it; it cannot be called from Python. Without counts of
# who uses an array, which would cost two calls wherever one is named: it must neither make arrays nor return any.
inlined = functools.partial(njit, error_model="numpy", _nrt=False, **_PART)


def inlined_once(function: Callable[..., Any]) -> Any:
    """`inlined`, but compiled once for constants and variables alike, not anew for every constant it is called with.

    For functions that do not choose code by a constant; LLVM still finds the constants where it inlines.
    """
    return compile_constants_once(inlined(function))


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point on its first call, or load it from numba's cache. No fastmath: bytes must not vary.

    It makes no arrays, which would take longer to compile. numba looks at the file of the function alone to see whether
    a cached kernel is out of date. Ours consist of functions from this folder, too, so that a change of any of these
    files counts.
    """
    compiled = njit(nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)(function)
    stamp_cache(compiled, parts_changed(Path(function.__code__.co_filename).parent))
    return compiled


@functools.cache
def parts_changed(folder: Path) -> float:
    """When a file of this folder, or of a format, or of the folder of a kernel was last changed."""
    files = [*Path(__file__).parents[1].glob("*/*.py"), *folder.glob("*.py")]
    return max(file.stat().st_mtime for file in files)
