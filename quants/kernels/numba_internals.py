"""All that the kernels use of numba and llvmlite: the one module that imports them.

Lane types, intrinsics and parts without machine code need names that numba does not document, and may rename or remove
in any release. `SUPPORTED` is the range that pyproject.toml allows; `make test-all-numbas` tests each minor release in
it. Where a name is gone, or numba cannot be loaded at all, importing this module raises NumbaError, which says what is
installed and what to install.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

from ..errors import NumbaError

SUPPORTED = ">=0.61,<0.69"  # as in pyproject.toml


def unusable(error: Exception) -> NumbaError:
    """Return the error that explains that the installed numba cannot be used."""
    try:
        installed = f"numba {importlib.metadata.version('numba')}"
    except importlib.metadata.PackageNotFoundError:
        problem = f"numba is not installed; the kernels are compiled by numba {SUPPORTED}"
    else:
        problem = f"{installed} cannot compile the kernels, which need numba {SUPPORTED}: {error}"
    return NumbaError(problem, f"pip install 'numba{SUPPORTED}'")


try:
    import llvmlite.binding as llvm
    from llvmlite import ir
    from numba import njit
    from numba.core import cgutils, config
    from numba.core import types as nt
    from numba.core.caching import NullCache
    from numba.core.ccallback import CFunc
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags
    from numba.core.compiler_machinery import LoweringPass, register_pass
    from numba.core.dispatcher import Dispatcher
    from numba.core.errors import TypingError
    from numba.core.sigutils import normalize_signature
    from numba.core.typed_passes import NativeLowering, NopythonRewrites
    from numba.core.types.containers import UniTuple
    from numba.core.types.misc import unliteral
    from numba.core.typing import signature
    from numba.core.typing.templates import AbstractTemplate, infer_global
    from numba.core.untyped_passes import InlineClosureLikes
    from numba.extending import intrinsic, lower_builtin, models, register_model
    from numba.np.arrayobj import make_array, populate_array

    llvm.get_host_cpu_features, llvm.initialize_native_asmparser  # noqa: B018  # attributes, which no import checks
    cgutils.get_or_insert_function, cgutils.for_range, cgutils.alloca_once, cgutils.alloca_once_value  # noqa: B018
    cgutils.unpack_tuple, config.CPU_FEATURES, Dispatcher.get_call_template  # noqa: B018
except (ImportError, AttributeError) as error:
    raise unusable(error) from error

__all__ = [
    "SUPPORTED",
    "AbstractTemplate",
    "CFunc",
    "PartCompiler",
    "TypingError",
    "UniTuple",
    "can_leave_out",
    "cgutils",
    "compile_constants_once",
    "host_features",
    "infer_global",
    "intrinsic",
    "ir",
    "is_cached",
    "llvm",
    "lower_builtin",
    "make_array",
    "models",
    "njit",
    "normalize_signature",
    "nt",
    "populate_array",
    "register_model",
    "signature",
    "stamp_cache",
]

UNNEEDED = (InlineClosureLikes, NopythonRewrites)  # our functions have neither closures nor expressions of arrays


class _Part(JITCodeLibrary):  # type: ignore[misc]  # numba has no types for mypy
    """Code that is linked into a kernel's, and neither optimized nor translated before."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=False)
class _Register(LoweringPass):  # type: ignore[misc]
    """Let callers find what was lowered. numba does so by the entry point; there is none, and anything unique will
    do.
    """

    _name = "register"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        entry: Any = [].append  # a built-in function it must be
        state["cr"] = state["cr"]._replace(cfunc=entry)
        state.targetctx.insert_user_function(entry, state["cr"].fndesc, [state.library])
        return True


class PartCompiler(CompilerBase):  # type: ignore[misc]
    """numba's usual compilation, up to LLVM's language."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Register, NativeLowering)
        passes.passes = [each for each in passes.passes if each[0] not in UNNEEDED]
        passes.finalize()
        self.state.flags.no_compile = True
        self.state.library = _Part(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return [passes]


def can_leave_out() -> bool:
    """Whether this numba has what `PartCompiler` changes."""
    changed = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals")
    return hasattr(Flags, "no_compile") and all(hasattr(JITCodeLibrary, name) for name in changed)


def compile_constants_once(compiled: Any) -> Any:
    """Compile a dispatcher once for constants and variables alike, not anew for every constant it is called with."""
    template = compiled.get_call_template
    compiled.get_call_template = lambda types, names: template(tuple(map(unliteral, types)), names)
    return compiled


def host_features() -> str:
    """Return the features of the processor that numba compiles for, as LLVM names them, each with its sign."""
    chosen = config.CPU_FEATURES
    return str(llvm.get_host_cpu_features().flatten() if chosen is None else chosen)


def stamp_cache(compiled: Any, stamp: Any) -> None:
    """Have cached machine code count as out of date once `stamp` is another, not only when the function's file is.

    compiled: a dispatcher or a CFunc. An index with types of ours that are gone counts as empty.
    """
    cached = _cache_file(compiled)
    if cached is not None:
        cached._source_stamp = (cached._source_stamp, stamp)
        cached._load_index = functools.partial(_index_of_this_version, cached._load_index)


def is_cached(compiled: Any) -> bool:
    """Whether a kernel was compiled before, for whatever types; True where there is no cache to tell."""
    cached = _cache_file(compiled)
    if cached is None:
        return True
    # kernels of one function differ in constants
    wanted = compiled._cache._index_key(None, compiled.targetctx.codegen())[1:]
    return any(key[1:] == wanted for key in cached._load_index())


def _cache_file(compiled: Any) -> Any:
    """Where numba keeps the machine code of a function; None where it keeps none. numba offers no public way."""
    try:
        return None if isinstance(compiled._cache, NullCache) else compiled._cache._cache_file
    except AttributeError as error:
        raise unusable(error) from error


def _index_of_this_version(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """numba's index of a cache; empty where another version of ours wrote it, for types that are gone."""
    try:
        return load()
    except (AttributeError, ImportError):
        return {}
