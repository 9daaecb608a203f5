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

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import NativeLowering, NopythonRewrites
from numba.core.types.misc import unliteral
from numba.core.untyped_passes import InlineClosureLikes

UNNEEDED = (InlineClosureLikes, NopythonRewrites)  # our functions have neither closures nor expressions of arrays


class _Part(JITCodeLibrary):  # type: ignore[misc]  # numba has no types for mypy
    """Code that is linked into a kernel's, neither optimized nor translated before."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=False)
class _Register(LoweringPass):  # type: ignore[misc]
    """Register a lowered function for its callers. numba finds it by its entry point; it has none, and any unique
    object will do.
    """

    _name = "register"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        entry: Any = [].append  # must be a built-in function
        state["cr"] = state["cr"]._replace(cfunc=entry)
        state.targetctx.insert_user_function(entry, state["cr"].fndesc, [state.library])
        return True


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """numba's usual compiler, up to LLVM IR."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Register, NativeLowering)
        passes.passes = [each for each in passes.passes if each[0] not in UNNEEDED]
        passes.finalize()
        self.state.flags.no_compile = True
        self.state.library = _Part(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return [passes]


def _can_leave_out() -> bool:
    changed = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals")
    return hasattr(Flags, "no_compile") and all(hasattr(JITCodeLibrary, name) for name in changed)


_PART: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "nogil": True}
if _can_leave_out():
    _PART["pipeline_class"] = _PartCompiler

# A function that is always inlined into the kernels that call it; it cannot be called from Python. It has no reference
# counts of arrays, which would cost two calls wherever one is named: it must neither make arrays nor return any.
inlined = functools.partial(njit, error_model="numpy", _nrt=False, **_PART)


def inlined_once(function: Callable[..., Any]) -> Any:
    """Compile a function as `inlined`, but once for constants and variables alike, not again for every constant
    argument.

    For functions that do not select code by a constant; LLVM still finds the constants where it inlines.
    """
    compiled = inlined(function)
    template = compiled.get_call_template
    compiled.get_call_template = lambda types, names: template(tuple(map(unliteral, types)), names)
    return compiled


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point on its first call, or load it from numba's cache. No fastmath: bytes must not vary.

    A kernel makes no arrays, which would take longer to compile. numba checks only the file of the function itself to
    see whether a cached kernel is out of date. Ours include functions from other files of this folder, so a change of
    any of these counts.
    """
    compiled = njit(nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)(function)
    cached = getattr(compiled._cache, "_cache_file", None)  # numba offers no public way
    if cached is not None:
        cached._source_stamp = (cached._source_stamp, parts_changed(Path(function.__code__.co_filename).parent))
        cached._load_index = functools.partial(_index_of_this_version, cached._load_index)
    return compiled


def _index_of_this_version(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """Return numba's index of a cache; empty if another version of ours wrote it, for types that are gone."""
    try:
        return load()
    except (AttributeError, ImportError):
        return {}


def is_cached(compiled: Any) -> bool:
    """Return whether a kernel was compiled before, for any types; True where there is no cache to check."""
    cache: Any = getattr(compiled, "_cache", None)
    cached = getattr(cache, "_cache_file", None)
    if cached is None:
        return True
    # kernels made from one function differ in constants
    wanted = cache._index_key(None, compiled.targetctx.codegen())[1:]
    return any(key[1:] == wanted for key in cached._load_index())


@functools.cache
def parts_changed(folder: Path) -> float:
    """Return when a file of this folder, of a format, or of the kernel's folder was last changed."""
    files = [*Path(__file__).parents[1].glob("*/*.py"), *folder.glob("*.py")]
    return max(file.stat().st_mtime for file in files)
