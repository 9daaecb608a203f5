"""Architectures by Hugging Face class and by GGUF name.

Families are the modules of `archs/families` and whatever other packages offer under the entry point group
"gguftools.architectures" (an entry point names a module). Every `Architecture` at a module's top level counts.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from quants.errors import ModelError

from . import families
from .spec import Architecture

ENTRY_POINTS = "gguftools.architectures"


@cache
def architectures() -> tuple[Architecture, ...]:
    """All known architectures, sorted by GGUF name. Raises ModelError where two claim one Hugging Face class."""
    found = [value for module in _modules() for value in vars(module).values() if isinstance(value, Architecture)]
    unique = list({id(value): value for value in found}.values())
    owners: dict[str, Architecture] = {}
    for architecture in unique:
        for hf_class in architecture.hf_classes:
            if hf_class in owners:
                raise ModelError(
                    f"{hf_class} is claimed by two architectures: {owners[hf_class].name}, {architecture.name}"
                )
            owners[hf_class] = architecture
    return tuple(sorted(unique, key=lambda a: (a.name, a.hf_classes)))


def _modules() -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(families.__path__):
        yield importlib.import_module(f"{families.__name__}.{info.name}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        yield entry.load()


def by_hf_class(names: tuple[str, ...] | list[str]) -> Architecture:
    """The architecture of the first known of config.json's classes. Raises ModelError naming the nearest known ones."""
    known = {hf_class: a for a in architectures() for hf_class in a.hf_classes}
    for name in names:
        if name in known:
            return known[name]
    near = [n for name in names for n in difflib.get_close_matches(name, known, n=3, cutoff=0.5)]
    raise ModelError(
        f"model class {' / '.join(names) or '(none in config.json)'} is not supported",
        hint=f"nearest known: {', '.join(near)}" if near else "`gguftools architectures` lists what is",
    )


def by_gguf_name(name: str) -> Architecture:
    """The architecture that runs files of `general.architecture` = name. Raises ModelError naming the nearest ones."""
    for architecture in architectures():
        if architecture.name == name:
            return architecture
    near = difflib.get_close_matches(name, {a.name for a in architectures()}, n=3, cutoff=0.5)
    raise ModelError(
        f"general.architecture {name!r} is not one the runtime knows",
        hint=f"nearest known: {', '.join(near)}" if near else None,
    )
