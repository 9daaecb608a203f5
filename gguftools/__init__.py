"""Turn Hugging Face checkpoints into GGUF files, quantize them, edit them, and measure what quantizing cost.

What is listed in `__all__` is the public Python API; what a command does, one of its functions does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_API = {
    # name: module that has it; imported when first asked for, so that `import gguftools` costs nothing
    "GgufToolsError": "quants.errors",
    "Model": "gguftools.model",
    **dict.fromkeys(("Remove", "Rename", "Set", "SetChatTemplate", "SetItem", "SetSpecialToken", "SetType"),
                    "gguftools.metadata.operations"),
    "architectures": "gguftools.inspection.architectures",
    "audit": "gguftools.inspection.audit",
    "convert": "gguftools.conversion.convert",
    "convert_endian": "gguftools.conversion.endianness",
    "diff": "gguftools.inspection.compare",
    "divergence": "gguftools.measurement.divergence",
    "export": "gguftools.conversion.export",
    "formats": "gguftools.inspection.formats",
    "gpu_split": "gguftools.conversion.placement",
    "hash": "gguftools.inspection.hashing",
    "imatrix": "gguftools.measurement.importance",
    "load": "gguftools.model",
    "merge": "gguftools.conversion.shards",
    "open": "gguftools.model",
    "perplexity": "gguftools.measurement.perplexity",
    "quantize": "gguftools.conversion.quantize",
    "set_metadata": "gguftools.metadata.edit",
    "split": "gguftools.conversion.shards",
    "validate": "gguftools.inspection.validation",
}

__all__ = [
    "GgufToolsError", "Model", "Remove", "Rename", "Set", "SetChatTemplate", "SetItem", "SetSpecialToken", "SetType",
    "__version__", "architectures", "audit", "convert", "convert_endian", "diff", "divergence", "export", "formats",
    "gpu_split", "hash", "imatrix", "load", "merge", "open", "perplexity", "quantize", "set_metadata", "split",
    "validate",
]  # fmt: skip

if TYPE_CHECKING:
    from quants.errors import GgufToolsError

    from .conversion.convert import convert
    from .conversion.endianness import convert_endian
    from .conversion.export import export
    from .conversion.placement import gpu_split
    from .conversion.quantize import quantize
    from .conversion.shards import merge, split
    from .inspection.architectures import architectures
    from .inspection.audit import audit
    from .inspection.compare import diff
    from .inspection.formats import formats
    from .inspection.hashing import hash
    from .inspection.validation import validate
    from .measurement.divergence import divergence
    from .measurement.importance import imatrix
    from .measurement.perplexity import perplexity
    from .metadata.edit import set_metadata
    from .metadata.operations import Remove, Rename, Set, SetChatTemplate, SetItem, SetSpecialToken, SetType
    from .model import Model, load, open


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _API:
        raise AttributeError(f"module 'gguftools' has no attribute {name!r}")
    value = getattr(importlib.import_module(_API[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})
