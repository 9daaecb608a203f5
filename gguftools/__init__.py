"""Turn Hugging Face checkpoints into GGUF files, quantize them, edit them, and measure what quantizing cost.

The functions of this module are the public Python API; what a command does, one of them does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_API = {
    # name: module that has it; imported when first asked for, so that `import gguftools` costs nothing
    "audit": "inspection.audit",
    "convert": "conversion.convert",
    "diff": "inspection.compare",
    "hash": "inspection.hashing",
    "load": "opened",
    "open": "opened",
    "perplexity": "measurement.perplexity",
    "quantize": "conversion.quantize",
    "set_metadata": "metadata.edit",
    "validate": "inspection.validation",
}

__all__ = [
    "GgufToolsError", "__version__", "audit", "convert", "diff", "hash", "load", "open", "perplexity", "quantize",
    "set_metadata", "validate",
]  # fmt: skip

if TYPE_CHECKING:
    from quants.errors import GgufToolsError

    from .conversion.convert import convert
    from .conversion.quantize import quantize
    from .inspection.audit import audit
    from .inspection.compare import diff
    from .inspection.hashing import hash
    from .inspection.validation import validate
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
