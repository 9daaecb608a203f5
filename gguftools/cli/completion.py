"""Values that the shell completes: formats, recipes, keys of the file that is named, architectures, choices.

Imports what it lists only when it is asked: this runs at every press of the Tab key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

FILE_PARAMETERS = ("file", "files", "model", "source", "target")  # whose metadata is completed
SORTS = ("worst", "name", "layer", "rmse", "size")
OVERRIDE_TYPES = ("int", "float", "bool", "str")
ARCHITECTURE = "general.architecture"
ANY_CASE = ("FORMAT", "OUTTYPE", "RECIPE")  # words whose values are read in any case


def matching(word: str, context: Any, incomplete: str) -> list[str]:
    """Return the values that complete the typed text; names of formats in its case."""
    if incomplete == "=":  # bash splits the word there
        incomplete = ""
    values = VALUES[word](context)
    if word in ANY_CASE and incomplete and incomplete == incomplete.lower():
        values = map(str.lower, values)
    return [value for value in values if value.startswith(incomplete)]


def _formats(context: Any) -> Iterator[str]:
    from quants.format import formats

    return (name for name, each in formats().items() if each.has_codec)


def _recipes(context: Any) -> Iterable[str]:
    from ..quantization.recipes import RECIPES

    return RECIPES


def _outtypes(context: Any) -> Iterable[str]:
    return ("auto", "f32", "f16", "bf16", "q8_0", "exact", *_recipes(context))


def _severities(context: Any) -> Iterable[str]:
    from ..inspection.audits.finding import SEVERITIES

    return SEVERITIES


def _readers(context: Any) -> Iterable[str]:
    from archs.diffusion.spec import READERS

    return READERS


def _poolings(context: Any) -> Iterable[str]:
    from runtime.evaluation.pooling import POOLINGS

    return POOLINGS


def architectures(context: Any) -> list[str]:
    """Return the GGUF names of all architectures."""
    from ..inspection.catalogue import architectures as known

    return sorted({each.name for each in known() if not each.wrapper})


def keys(context: Any) -> list[str]:
    """Return the metadata keys of the file that the call names; none where it cannot be read."""
    from quants.errors import GgufToolsError

    named = next((value for name in FILE_PARAMETERS if (value := context.params.get(name))), None)
    named = named or context.args  # where parsing ended at an option without its value
    path = next(iter(named), None) if isinstance(named, (list, tuple)) else named
    if path is None or "://" in str(path):
        return []
    from ..models.model import opened_gguf

    try:
        return list(opened_gguf(Path(path)).metadata)
    except (GgufToolsError, OSError):
        return []


def _assignments(context: Any) -> Iterator[str]:
    """Yield KEY= for each key, then the known values of a typed KEY=; bash passes KEY and = as separate words."""
    words = [str(each) for each in context.params.get("assignments") or ()]
    if words[-1:] == ["="] or words[-1:] == [ARCHITECTURE]:
        yield from architectures(context) if ARCHITECTURE in words[-2:] else ()
        return
    for key in keys(context):
        yield f"{key}="
    for name in architectures(context):
        yield f"{ARCHITECTURE}={name}"


def _overrides(context: Any) -> list[str]:
    return [f"{key}={type}:" for key in keys(context) for type in OVERRIDE_TYPES]


def _choices(*values: str) -> Callable[[Any], tuple[str, ...]]:
    return lambda context: values


# Kind of value -> the values in a context.
VALUES: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "ACTION": _choices("make", "apply"),
    "ARCHITECTURE": architectures,
    "ASSIGNMENT": _assignments,
    "BYTE_ORDER": _choices("little", "big"),
    "CACHE_TYPE": _choices("f32", "f16", "q8_0"),
    "EXPORT_TYPE": _choices("f32", "f16", "bf16"),
    "FALLBACK": _choices("auto", "f32", "f16", "bf16", "q8_0"),
    "FORMAT": _formats,
    "KEY": keys,
    "KEY=": lambda context: (f"{key}=" for key in keys(context)),
    "OUTTYPE": _outtypes,
    "OVERRIDE": _overrides,
    "POOLING": _poolings,
    "PRECISION": _choices("float32", "exact", "llama.cpp"),
    "RECIPE": _recipes,
    "READER": _readers,
    "SEVERITY": _severities,
    "SORT": _choices(*SORTS),
}
