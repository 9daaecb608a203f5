"""JSON Schema of what `--json` prints, from the types that the output is built of."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from .ui import FORMAT_VERSION

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SIMPLE: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}


def schema(command: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with --json; without a command, of all of them by name.

    Raises OptionError for a command that does not exist, or has no --json.
    """
    from quants.errors import OptionError
    from quants.spelling import did_you_mean, quote

    from .json_types import PRINTED

    if command is None:
        return {name: command_schema(name, results) for name, results in PRINTED.items()}
    if command not in PRINTED:
        hint = did_you_mean(str(command), PRINTED) or "see gguftools --help"
        raise OptionError(f"there is no command {quote(command)} with --json", hint)
    return command_schema(command, PRINTED[command])


def command_schema(command: str, results: tuple[Any, ...]) -> dict[str, Any]:
    """The schema of a command's output. results: the types that it may print, by what it is asked for."""
    found = [_versioned(schema_of(each)) for each in results]
    about = {"$schema": DRAFT, "title": f"gguftools {command} --json"}
    return about | (found[0] if len(found) == 1 else {"anyOf": found})


def _versioned(schema: dict[str, Any]) -> dict[str, Any]:
    """With the format_version that is added to each printed object."""
    if schema.get("type") == "array":
        return schema | {"items": _versioned(schema["items"])}
    version = {"format_version": {"const": FORMAT_VERSION}}
    if "properties" not in schema:
        return schema | {"properties": version}
    return schema | {"properties": version | schema["properties"], "required": ["format_version", *schema["required"]]}


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type: of plain data, TypedDicts, dataclasses, and containers of them."""
    if any(kind is each for each in SIMPLE):
        return dict(SIMPLE[kind])
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each) for each in inner]}
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        return _object({name: schema_of(hint) for name, hint in hints.items()}, kind.__optional_keys__, kind)
    if is_dataclass(kind):
        return _object_of_dataclass(kind)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin in (list, tuple) or (isinstance(origin, type) and origin.__name__ == "Sequence"):
        return {"type": "array", "items": schema_of(inner[0])}
    if kind is dict:
        return {"type": "object"}
    raise TypeError(f"{kind!r} has no JSON Schema")


def _object_of_dataclass(kind: Any) -> dict[str, Any]:
    """A dataclass by its fields; of a Report its properties `also`, too, and the keys that it gives them."""
    from ..writing.report import RENAMED, Report

    hints = get_type_hints(kind)
    named = {each.name: schema_of(hints[each.name]) for each in fields(kind)}
    if not issubclass(kind, Report):
        return _object(named, (), kind)
    for name in kind.also:
        named[name] = schema_of(get_type_hints(getattr(kind, name).fget)["return"])
    named = {RENAMED.get(name, name): schema for name, schema in named.items()}
    if "verdict" in named and named["verdict"] == SIMPLE[bool]:
        named["verdict"] = {"enum": ["ok", "wrong"]}
    return _object(named, (), kind)


def _object(properties: dict[str, Any], optional: Any, kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    if (kind.__doc__ or "").strip() and not kind.__doc__.startswith(f"{kind.__name__}("):
        found["description"] = " ".join(kind.__doc__.split())
    return found | {
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
