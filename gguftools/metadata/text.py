"""Values as people read them, in one line and in full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from archs.metadata import Value, ValueType

SHORT_ARRAY = 8  # arrays up to this long are shown whole
SHORT_TEXT = 160


def type_name(value: Value) -> str:
    """ "UINT32", or "ARRAY/STRING" for arrays."""
    return value.type.name if value.element is None else f"{value.type.name}/{value.element.name}"


def plain(value: Value) -> Any:
    """The value as JSON knows it: numpy numbers and lazy arrays become Python's."""
    if value.type is not ValueType.ARRAY:
        return _plain_item(value.data)
    return [plain(item) if isinstance(item, Value) else _plain_item(item) for item in value.data]


def _plain_item(item: Any) -> Any:
    if isinstance(item, bytes):
        return item.decode("utf-8", "backslashreplace")
    return item.item() if isinstance(item, np.generic) else item


def brief(value: Value) -> str:
    """One line: long strings cut, long arrays by their beginning and length."""
    if value.type is not ValueType.ARRAY:
        return _brief_item(value.data)
    count = len(value.data)
    first = Value(value.data[:SHORT_ARRAY] if count <= SHORT_ARRAY else value.data[:4], value.type, value.element)
    items = ", ".join(_brief_item(item.data if isinstance(item, Value) else item, 40) for item in plain_items(first))
    return f"[{items}]" if count <= SHORT_ARRAY else f"[{items}, … {count:,} in all]"


def plain_items(value: Value) -> Iterator[Any]:
    for item in value.data:
        yield item if isinstance(item, Value) else _plain_item(item)


def _brief_item(item: Any, limit: int = SHORT_TEXT) -> str:
    item = _plain_item(item)
    if isinstance(item, float):
        return f"{item:.6g}"
    if not isinstance(item, str):
        return str(item)
    text = json.dumps(item, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(item):,} characters)"
