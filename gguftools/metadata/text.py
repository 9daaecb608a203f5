"""Values as people write and read them: from a command line, in one line and in full."""

import json
import re
from typing import Any

import numpy as np

from archs.metadata import GgufType, Value, ValueType
from archs.values import INTEGERS
from quants.spelling import quote

SHORT_ARRAY = 8  # arrays up to this long are shown whole
SHORT_TEXT = 160
TRUTH = {"true": True, "false": False}
INTEGER = re.compile(r"[+-]?\d+")
FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


class ArgumentText(str):
    """A value as typed on a command line: it is read as the type that its key has."""

    def __call__(self, gguf_type: GgufType | None) -> Any:
        """Return plain data of a type; None: of the one that it looks like. Raises ValueError."""
        text = str(self)
        if gguf_type is None:
            return _guess(text)
        if gguf_type.type is ValueType.STRING:
            return text
        if gguf_type.type is ValueType.ARRAY:
            return _json_list(text)
        if gguf_type.type is ValueType.BOOL:
            if text.strip().lower() not in TRUTH:
                raise ValueError(f"{quote(text)} is neither true nor false")
            return TRUTH[text.strip().lower()]
        try:
            return int(text, 0) if gguf_type.type in INTEGERS else float(text)
        except ValueError:
            what = "an integer" if gguf_type.type in INTEGERS else "a number"
            raise ValueError(f"{quote(text)} is not {what}") from None


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
    try:
        return _json_list(text) if text.startswith("[") else text
    except ValueError:
        return text


def plain(value: Value) -> Any:
    """Return the value as JSON knows it: numpy numbers and lazy arrays become Python's."""
    return [_plain_item(item) for item in value.data] if value.type is ValueType.ARRAY else _plain_item(value.data)


def _plain_item(item: Any) -> Any:
    if isinstance(item, Value):
        return plain(item)
    if isinstance(item, bytes):
        return item.decode("utf-8", "backslashreplace")
    return item.item() if isinstance(item, np.generic) else item


def typed(value: Value) -> str:
    """One line: the type, and the value in brief."""
    return f"{value.gguf_type} {brief(value)}"


def brief(value: Value) -> str:
    """One line: long strings cut, long arrays by their beginning and length."""
    if value.type is not ValueType.ARRAY:
        return _brief_item(value.data)
    count = len(value.data)
    first = value.data[: SHORT_ARRAY if count <= SHORT_ARRAY else 4]
    items = ", ".join(_brief_item(item.data if isinstance(item, Value) else item, 40) for item in first)
    return f"[{items}]" if count <= SHORT_ARRAY else f"[{items}, … {count:,} in all]"


def _brief_item(item: Any, limit: int = SHORT_TEXT) -> str:
    item = _plain_item(item)
    if isinstance(item, float):
        return f"{item:.6g}"
    if not isinstance(item, str):
        return str(item)
    text = json.dumps(item, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(item):,} characters)"
