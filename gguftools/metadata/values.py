"""Metadata values from text and plain data: what the user gives becomes exactly the GGUF type that is wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from archs.metadata import Value, ValueType
from archs.small_files import parse_json
from quants.errors import FileError, OptionError

from ..files.gguf.reader import ARRAY_TYPES, INTEGERS, MAX_ARRAY_DEPTH
from ..files.gguf.strings import StringArray, quote
from ..files.gguf.writer import numbers

FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
TRUTH = {"true": True, "false": False}
INTEGER = re.compile(r"[+-]?\d+")
FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt", ".json")
LONGEST_NAME = 255  # of files
INTEGER_TYPES = (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64)  # the first that fits

T = TypeVar("T")


class Typed(str):
    """A value as typed on a command line: it is read as the type that its key has."""


@dataclass(frozen=True)
class Kind:
    """A GGUF type, of arrays with the type of their items."""

    type: ValueType
    items: Kind | None = None

    def __str__(self) -> str:
        return self.type.name if self.items is None else f"{self.type.name}/{self.items}"


def parse_kind(text: str) -> Kind:
    """A type as `show` prints it: UINT32, STRING, ARRAY/INT8, ARRAY/ARRAY/STRING. Raises OptionError."""
    known = [kind.name for kind in ValueType]
    names = text.upper().split("/")
    arrays, last = names[:-1], names[-1]
    if last not in known or last == "ARRAY" or set(arrays) - {"ARRAY"} or len(arrays) > MAX_ARRAY_DEPTH:
        scalars = ", ".join(name for name in known if name != "ARRAY")
        hint = f"types are {scalars}, and ARRAY/ before any of them"
        raise OptionError(f"{text!r} is not a type of values", hint=hint)
    kind = Kind(ValueType[last])
    for _ in arrays:
        kind = Kind(ValueType.ARRAY, kind)
    return kind


def kind_of(value: Value) -> Kind:
    """The type of a value; for nested arrays that of their first items."""
    if value.type is not ValueType.ARRAY:
        return Kind(value.type)
    if value.element is not ValueType.ARRAY:
        return Kind(ValueType.ARRAY, Kind(ValueType.STRING if value.element is None else value.element))
    inner = kind_of(value.data[0]) if len(value.data) else Kind(ValueType.ARRAY, Kind(ValueType.STRING))
    return Kind(ValueType.ARRAY, inner)


def split_pair(text: str, what: str) -> tuple[str, str]:
    """KEY=VALUE in two. Raises OptionError."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise OptionError(f"{text!r} is not of the form {what}")
    return key, value


def once(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """The pairs by their first parts. Raises OptionError for one that is given twice."""
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise OptionError(f"{name!r} is given twice: {quote(found[name])} and {quote(value)}")
        found[name] = value
    return found


def parse_assignment(text: str) -> tuple[str, Typed]:
    """KEY=VALUE; `KEY=@file` takes the file's text, `@@` begins a value with one @. Raises OptionError, FileError."""
    key, value = split_pair(text, "KEY=VALUE")
    return key, Typed(text_or_file(value))


def text_or_file(value: str) -> str:
    """The text itself, or for `@file` what the file holds."""
    if value.startswith("@@"):
        return value[1:]
    return read_text_file(Path(value[1:])) if value.startswith("@") else value


def names_file(template: str) -> bool:
    """Whether what should be a chat template is the name of one: its @ was forgotten."""
    if "{" in template or "\n" in template or "\0" in template or len(template) > LONGEST_NAME:
        return False
    return template.endswith(TEMPLATE_SUFFIXES) or Path(template).is_file()


def named_files(texts: Iterable[str]) -> list[Path]:
    """The files that `KEY=@FILE` and `@FILE` name."""
    found = (text if text.startswith("@") else text.partition("=")[2] for text in texts)
    return [Path(text[1:]) for text in found if text.startswith("@")]


def read_text_file(path: Path) -> str:
    """A UTF-8 file, to the byte. Raises FileError."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error


def read_json_values(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and types of a JSON file: an object whose values are plain, or {"type": …, "value": …} as `show` prints.

    Raises FileError, OptionError.
    """
    try:
        given = parse_json(read_text_file(path))
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    if isinstance(given, dict) and isinstance(given.get("metadata"), dict):
        given = given["metadata"]
    if not isinstance(given, dict):
        raise FileError(f"{path} holds no JSON object of keys and values")
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for key, entry in given.items():
        if isinstance(entry, dict):
            if "value" not in entry or set(entry) - {"type", "value"}:
                found = ", ".join(map(repr, entry))
                raise OptionError(f"{path}: {key!r} has {found}; a plain value, or 'type' and 'value' were expected")
            values[key] = entry["value"]
            if "type" in entry:
                types[key] = entry["type"]
        else:
            values[key] = entry
    return values, types


def make_value(key: str, data: Any, kind: Kind | None) -> Value:
    """A value of the given type (None: the one that follows from the data). Raises OptionError naming the key."""
    if isinstance(data, Value):
        return data
    try:
        if isinstance(data, Typed):
            data = read_typed(data, kind)
        return _convert(data, kind or guess_kind(data))
    except (ValueError, TypeError, OverflowError) as error:
        hint = f"another type is given by --type {key}=TYPE" if kind is not None else None
        raise OptionError(f"{key!r} is {kind}: {error}" if kind else f"{key!r}: {error}", hint=hint) from error


def read_typed(text: Typed, kind: Kind | None) -> Any:
    """Plain data from text. Raises ValueError."""
    if kind is None:
        return _guess(str(text))
    if kind.type is ValueType.STRING:
        return str(text)
    if kind.type is ValueType.ARRAY:
        return _json_list(str(text))
    if kind.type is ValueType.BOOL:
        if text.strip().lower() not in TRUTH:
            raise ValueError(f"{quote(str(text))} is neither true nor false")
        return TRUTH[text.strip().lower()]
    try:
        return int(text, 0) if kind.type in INTEGERS else float(text)
    except ValueError:
        what = "an integer" if kind.type in INTEGERS else "a number"
        raise ValueError(f"{quote(str(text))} is not {what}") from None


def _json_list(text: str) -> list[Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{quote(text)} is not a JSON array: {error}") from None
    if not isinstance(data, list):
        raise ValueError(f"{quote(text)} is not a JSON array")
    return data


def _guess(text: str) -> Any:
    if text.lower() in TRUTH:
        return TRUTH[text.lower()]
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    if text.startswith("["):
        try:
            return _json_list(text)
        except ValueError:
            return text
    return text


def guess_kind(data: Any) -> Kind:
    """The type that plain data has by itself: integers the first of UINT32, INT32, INT64, UINT64 that holds them all.

    Raises ValueError where it has none.
    """
    if isinstance(data, np.ndarray):
        return Kind(ValueType.ARRAY, _kind_of_array(data))
    if isinstance(data, StringArray):
        return Kind(ValueType.ARRAY, Kind(ValueType.STRING))
    if isinstance(data, (list, tuple)):
        return Kind(ValueType.ARRAY, _common_kind(data))
    return _common_kind([data])


def _kind_of_array(data: np.ndarray[Any, Any]) -> Kind:
    codes = {code: kind for kind, code in ARRAY_TYPES.items() if kind is not ValueType.BOOL}
    code = f"{data.dtype.kind}{data.dtype.itemsize}"
    if data.ndim != 1 or (code not in codes and data.dtype != np.bool_):
        raise ValueError(f"an array of {data.dtype} of shape {data.shape} has no GGUF type")
    return Kind(ValueType.BOOL if data.dtype == np.bool_ else codes[code])


def _common_kind(items: Sequence[Any]) -> Kind:
    if not items:
        raise ValueError("an empty array could be of any type")
    if all(isinstance(item, (bool, np.bool_)) for item in items):
        return Kind(ValueType.BOOL)
    if all(isinstance(item, (str, bytes)) for item in items):
        return Kind(ValueType.STRING)
    if all(isinstance(item, (list, tuple, np.ndarray)) for item in items):
        return guess_kind(items[0])
    if all(_is_integer(item) for item in items):
        for kind in INTEGER_TYPES:
            limits = np.iinfo(ARRAY_TYPES[kind])
            if limits.min <= min(items) and max(items) <= limits.max:
                return Kind(kind)
        raise ValueError("no GGUF type holds integers of more than 64 bits")
    if all(_is_integer(item) or isinstance(item, (float, np.floating)) for item in items):
        return Kind(ValueType.FLOAT32)
    raise ValueError("the items are of different types" if len(items) > 1 else f"{quote(items[0])} has no GGUF type")


def _is_integer(item: Any) -> bool:
    return isinstance(item, (int, np.integer)) and not isinstance(item, bool)


def _convert(data: Any, kind: Kind) -> Value:
    """Raises ValueError where the data is of another type or out of range."""
    if kind.items is not None:
        return _convert_array(data, kind.items)
    if kind.type is ValueType.STRING:
        if not isinstance(data, (str, bytes)):
            raise ValueError(f"{quote(data)} is not a string")
        return Value(data, kind.type)
    if isinstance(data, np.ndarray) and not data.ndim:
        data = data[()]
    if not np.isscalar(data):
        raise ValueError(f"{quote(data)} is not a single value")
    return Value(_number(_checked([data], kind.type)[0], kind.type), kind.type)


def _number(data: Any, kind: ValueType) -> Any:
    if kind is ValueType.BOOL:
        return bool(data)
    if kind in INTEGERS:
        limits = np.iinfo(ARRAY_TYPES[kind])
        if not limits.min <= data <= limits.max:
            raise ValueError(f"{data} is not from {limits.min} to {limits.max}")
        return int(data)
    return numbers([data], kind)[0].item()  # as the file will hold it


def _convert_array(data: Any, items: Kind) -> Value:
    if isinstance(data, (str, bytes, Mapping)) or not hasattr(data, "__len__"):
        raise ValueError(f"{quote(data)} is not an array")
    if items.items is not None:
        return Value([_convert_array(item, items.items) for item in data], ValueType.ARRAY, ValueType.ARRAY)
    if items.type is ValueType.STRING:
        if not isinstance(data, StringArray):
            _check_items(data, lambda item: isinstance(item, (str, bytes)), "a string")
        return Value(data, ValueType.ARRAY, ValueType.STRING)
    stored = numbers(_checked(data, items.type), items.type)
    return Value(stored.view(np.bool_) if items.type is ValueType.BOOL else stored, ValueType.ARRAY, items.type)


def _checked(data: Any, kind: ValueType) -> Any:
    """The data, if its items are of that kind of number."""
    if isinstance(data, np.ndarray):
        return data
    if kind is ValueType.BOOL:
        _check_items(data, lambda item: isinstance(item, (bool, np.bool_)), "true or false")
    elif kind in INTEGERS:
        _check_items(data, _is_integer, "an integer")
    else:
        _check_items(data, lambda item: _is_integer(item) or isinstance(item, (float, np.floating)), "a number")
    return data


def _check_items(data: Any, fits: Any, what: str) -> None:
    for item in data:
        if not fits(item):
            raise ValueError(f"{quote(item)} is not {what}")


def same(a: Value | None, b: Value | None) -> bool:
    """Whether two values would be stored as the same bytes."""
    if a is None or b is None or (a.type, a.element) != (b.type, b.element):
        return a is b
    if a.type is not ValueType.ARRAY:
        return bool(_stored(a) == _stored(b))
    if len(a.data) != len(b.data):
        return False
    if a.element is ValueType.ARRAY:
        return all(map(same, a.data, b.data))
    if a.element is ValueType.STRING:
        if isinstance(a.data, StringArray) and isinstance(b.data, StringArray):
            return bool(np.array_equal(a.data.raw(), b.data.raw()))
        return all(x == y for x, y in zip(a.data, b.data, strict=True))
    assert a.element is not None
    return numbers(a.data, a.element).tobytes() == numbers(b.data, a.element).tobytes()


def _stored(value: Value) -> Any:
    """A scalar that equals another where files hold the same: floats by their bits, so that NaN is NaN."""
    if value.type not in FLOATS:
        return value.data
    with np.errstate(over="ignore"):
        return np.asarray(value.data).astype(ARRAY_TYPES[value.type]).tobytes()
