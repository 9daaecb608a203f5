"""Metadata of a model: keys in order, each value with the exact GGUF type that it is stored as."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from quants.arguments import wrong

from . import schema
from .values import GgufType, Value, ValueType, is_list, value_of

__all__ = ["GgufType", "Metadata", "Value", "ValueType"]


class Metadata(MutableMapping[str, Any]):
    """An ordered mapping key → plain data that remembers types: `metadata[key]`, `metadata.value(key)`.

    Plain data that is set gets the type that the key has here, else the schema's, else the one that follows from it.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """Set `values`: plain data, or Values. Raises OptionError for data that a key cannot have."""
        self._values: dict[str, Value] = {}
        self.update(values or {})

    def __getitem__(self, key: str) -> Any:
        return self._values[key].data

    def __setitem__(self, key: str, data: Any) -> None:
        """Set a value. Raises OptionError for data that the key's type cannot hold, and for a key that is no text."""
        if not isinstance(key, str):
            raise wrong("a metadata key", key, "a text")
        self._values[key] = data if isinstance(data, Value) else value_of(key, data, self.type_for(key, data))

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        """Compare with other Metadata, types included, in any order."""
        return self._values == other._values if isinstance(other, Metadata) else super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = self.get("general.architecture")
        return f"<Metadata: {len(self)} keys{f' of a {name} model' if isinstance(name, str) else ''}>"

    def value(self, key: str) -> Value:
        return self._values[key]

    def set(self, key: str, data: Any, type: ValueType, element: ValueType | None = None) -> None:
        """Set a value and its exact type, unchecked."""
        self._values[key] = Value(data, type, element)

    def type_for(self, key: str, data: Any) -> GgufType | None:
        """Return the type of plain data under a key; None where it follows from the data alone."""
        old, known = self._values.get(key), schema.find(key)
        listed = data.startswith("[") if isinstance(data, str) else is_list(data)
        if known and known.per_layer and listed and (old is None or old.type is not ValueType.ARRAY):
            return known.list_type(data)
        return old.gguf_type if old is not None else known.gguf_type if known else None

    def copy(self) -> "Metadata":
        new = Metadata()
        new._values = dict(self._values)
        return new
