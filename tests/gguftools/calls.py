"""Keyword arguments of functions from what tests name by field: each option object made of its own."""

from dataclasses import fields
from typing import Any

from gguftools import ConvertOptions, ExpertOptions, GraftOptions, QuantizeOptions, SearchOptions, WriteOptions

OBJECTS: dict[str, dict[str, type[Any]]] = {
    "convert": {"options": ConvertOptions, "write": WriteOptions},
    "quantize": {"options": QuantizeOptions, "search": SearchOptions, "write": WriteOptions},
    "graft": {"experts": ExpertOptions, "options": GraftOptions, "write": WriteOptions},
}
SPELLED = {"drop": "drop_experts", "merge": "merge_experts"}  # fields whose names need their object's


def options_of(function: str, **given: Any) -> dict[str, Any]:
    """The arguments of a function. given: fields of its option objects, and other arguments of it."""
    arguments = {}
    for name, made in OBJECTS[function].items():
        named = {each.name: SPELLED.get(each.name, each.name) for each in fields(made)}
        if found := {field: given.pop(spelled) for field, spelled in named.items() if spelled in given}:
            arguments[name] = made(**found)
    return arguments | given
