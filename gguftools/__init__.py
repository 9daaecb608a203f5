"""Turn Hugging Face checkpoints into GGUF files, quantize them, edit them, and measure what quantizing cost.

The functions of this module are the public Python API; what a command does, one of them does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_API = {
    # name: module that has it; imported when first asked for, so that `import gguftools` costs nothing
    "convert": "conversion.convert",
    "load": "opened",
    "open": "opened",
    "perplexity": "measurement.perplexity",
    "quantize": "conversion.quantize",
    "set_metadata": "metadata.edit",
}

__all__ = ["GgufToolsError", "__version__", "convert", "load", "open", "perplexity", "quantize", "set_metadata"]

if TYPE_CHECKING:
    from quants.errors import GgufToolsError

    from .conversion.convert import convert
    from .conversion.quantize import quantize
    from .measurement.perplexity import perplexity
    from .metadata.edit import set_metadata
    from .opened import load, open


def __getattr__(name: str) -> Any:
    import importlib

    if name == "GgufToolsError":
        return importlib.import_module("quants.errors").GgufToolsError
    if name not in _API:
        raise AttributeError(f"module 'gguftools' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gguftools.{_API[name]}"), name)
    globals()[name] = value  # over the submodule of that name, which the import has bound here
    return value
