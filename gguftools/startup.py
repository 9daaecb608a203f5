"""Starting fast: what commands that take a fraction of a second do without."""

from __future__ import annotations

import importlib.util
import sys

CONSTANTS = "gguf.constants"


def load_constants_alone() -> None:
    """Make `gguf.constants` importable without the rest of its package, which takes as long to load as an edit.

    For a process of our own command line only: where the whole package is imported later, it finds the module, but
    does not have it as its attribute.
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
