"""Metadata of a model: keys in order, each value with the exact GGUF type it is stored as."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from gguf.constants import GGUFValueType as ValueType

__all__ = ["Metadata", "Value", "ValueType"]


@dataclass(frozen=True)
class Value:
    """A metadata value.

    data: int, float, bool or str (bytes where a string is not UTF-8); for an ARRAY any sequence of those, which may
    decode its items only when asked (a reader's) or be a numpy array; for nested arrays a sequence of Values.
    element: the type of an ARRAY's items.
    """

    data: Any
    type: ValueType
    element: ValueType | None = None


class Metadata(MutableMapping[str, Any]):
    """An ordered mapping key → plain data that remembers types: `metadata[key]`, `metadata.value(key)`."""

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Any:
        return self._values[key].data

    def __setitem__(self, key: str, data: Any) -> None:
        """Set plain data. The type is that of the key's old value, or else follows from the data."""
        old = self._values.get(key)
        self._values[key] = data if isinstance(data, Value) else _typed(data, old)

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def value(self, key: str) -> Value:
        return self._values[key]

    def set(self, key: str, data: Any, type: ValueType, element: ValueType | None = None) -> None:
        """Set a value and its exact type."""
        self._values[key] = Value(data, type, element)

    def copy(self) -> Metadata:
        new = Metadata()
        new._values = dict(self._values)
        return new


def _typed(data: Any, old: Value | None) -> Value:
    if old is not None:
        return Value(data, old.type, old.element)
    if isinstance(data, (list, tuple)):
        return Value(data, ValueType.ARRAY, _scalar_type(data[0]) if data else ValueType.STRING)
    return Value(data, _scalar_type(data))


def _scalar_type(data: Any) -> ValueType:
    if isinstance(data, bool):
        return ValueType.BOOL
    if isinstance(data, int):
        return ValueType.UINT32 if 0 <= data < 1 << 32 else ValueType.INT64
    return ValueType.FLOAT32 if isinstance(data, float) else ValueType.STRING
