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
    """Return the schema of a command's output. results: the types that it may print, depending on its options."""
    schemas = [_versioned(schema_of(each)) for each in results]
    about = {"$schema": DRAFT, "title": f"gguftools {command} --json"}
    return about | (schemas[0] if len(schemas) == 1 else {"anyOf": schemas})


def _versioned(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the format_version that each printed object has."""
    if schema.get("type") == "array":
        return schema | {"items": _versioned(schema["items"])}
    version = {"format_version": {"const": FORMAT_VERSION}}
    if "properties" not in schema:
        return schema | {"properties": version}
    return schema | {"properties": version | schema["properties"], "required": ["format_version", *schema["required"]]}


def schema_of(annotation: Any) -> dict[str, Any]:
    """Return the schema of a type: plain data, a TypedDict, a dataclass, or a container of these."""
    if any(annotation is each for each in SIMPLE):
        return dict(SIMPLE[annotation])
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each) for each in inner]}
    if is_typeddict(annotation):
        hints = get_type_hints(annotation)
        return _object(
            {name: schema_of(hint) for name, hint in hints.items()}, annotation.__optional_keys__, annotation
        )
    if is_dataclass(annotation):
        return _object_of_dataclass(annotation)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin in (list, tuple) or (isinstance(origin, type) and origin.__name__ == "Sequence"):
        return {"type": "array", "items": schema_of(inner[0])}
    if annotation is dict:
        return {"type": "object"}
    raise TypeError(f"{annotation!r} has no JSON Schema")


def _object_of_dataclass(cls: Any) -> dict[str, Any]:
    """Return the schema of a dataclass from its fields; of a Report also from its properties in `also`, by its keys."""
    from ..writing.report import RENAMED, Report

    hints = get_type_hints(cls)
    named = {each.name: schema_of(hints[each.name]) for each in fields(cls)}
    if not issubclass(cls, Report):
        return _object(named, (), cls)
    for name in cls.also:
        named[name] = schema_of(get_type_hints(getattr(cls, name).fget)["return"])
    named = {RENAMED.get(name, name): schema for name, schema in named.items()}
    if "verdict" in named and named["verdict"] == SIMPLE[bool]:
        named["verdict"] = {"enum": ["ok", "wrong"]}
    return _object(named, (), cls)


def _object(properties: dict[str, Any], optional: Any, cls: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if (cls.__doc__ or "").strip() and not cls.__doc__.startswith(f"{cls.__name__}("):
        schema["description"] = " ".join(cls.__doc__.split())
    return schema | {
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
