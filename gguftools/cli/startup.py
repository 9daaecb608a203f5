"""Start fast: leave out what commands that take a fraction of a second do not need.

For a process of our own command line only: it leaves packages in a state that others may not expect.
"""

import gc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

CONSTANTS = "gguf.constants"
LOOKS_FOR_BLAS = "numba.np.arraymath"
BLAS = "scipy.linalg"


def collect_garbage_seldom() -> None:
    """Look for cycles of objects less often: a header of 100,000 tensors makes many objects, and none in a cycle."""
    gc.set_threshold(100_000, 50, 50)


def load_constants_alone() -> None:
    """Make `gguf.constants` importable without the rest of its package, which takes as long to load as an edit.

    Where the whole package is imported later, it finds the module, but does not have it as its attribute.
    """
    package = None if {"gguf", CONSTANTS} & set(sys.modules) else importlib.util.find_spec("gguf")
    if package is None or not package.submodule_search_locations:
        return
    spec = importlib.util.spec_from_file_location(CONSTANTS, f"{package.submodule_search_locations[0]}/constants.py")
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[CONSTANTS] = module
    spec.loader.exec_module(module)


def keep_numba_from_scipy() -> None:
    """Have numba load as if scipy were not installed, which takes a third of the time.

    It looks for scipy to multiply matrices, which no kernel of ours does.
    """
    if LOOKS_FOR_BLAS not in sys.modules and BLAS not in sys.modules:
        sys.meta_path.insert(0, _WithoutScipy())


class _WithoutScipy:
    """Finds one module of numba, and hides scipy while that is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != LOOKS_FOR_BLAS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None and BLAS not in sys.modules:
            self.execute = spec.loader.exec_module
            spec.loader.exec_module = self.exec_module  # type: ignore[method-assign]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[BLAS] = None  # type: ignore[assignment]  # importing it raises ImportError
        try:
            self.execute(module)
        finally:
            del sys.modules[BLAS]
