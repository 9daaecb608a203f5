"""What differs between the metadata of two models, or of one before and after an edit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from archs.metadata import Metadata, Value, ValueType
from quants.spelling import quote

from .text import SHORT_ARRAY, brief, plain, typed

SHOWN_ITEMS = 10


@dataclass(frozen=True)
class KeyDifference:
    """One key: its value in A (or before), and in B (or after); None where there is none. old_key: its name in A."""

    key: str
    a: Value | None
    b: Value | None
    old_key: str | None = None

    @property
    def kind(self) -> str:
        """Return "added" (only B has it), "removed" (only A), "changed", "type" (stored as another type)."""
        if self.a is None or self.b is None:
            return "added" if self.a is None else "removed"
        return "changed" if self.a.gguf_type == self.b.gguf_type else "type"

    @property
    def note(self) -> str | None:
        """Where two arrays part; None where they don't."""
        a, b = self.a, self.b
        if a is None or b is None or not a.type is b.type is ValueType.ARRAY:
            return None
        if (a.element is ValueType.STRING) != (b.element is ValueType.STRING):
            return None
        count = min(len(a.data), len(b.data))
        if differing := _differing_items(a, b, count):
            return f"{len(differing):,} of {count:,} items differ, the first is item {differing[0]}"
        lengths = f"lengths {len(a.data):,} and {len(b.data):,}"
        return f"equal up to item {count:,}; {lengths}" if len(a.data) != len(b.data) else None

    def lines(self) -> Iterator[str]:
        """Yield the change as a diff: "- " before the old value, "+ " before the new, two spaces before others."""
        a, b = self.a, self.b
        if a is not None and b is not None and self.kind == "changed" and self.old_key is None:
            yield from _inner_lines(self.key, a, b)
            return
        for sign, key, value in (("-", self.old_key or self.key, a), ("+", self.key, b)):
            if value is not None:
                yield f"{sign} {key}  {value.gguf_type}  {brief(value)}"

    def as_dict(self) -> dict[str, Any]:
        a, b = (None if value is None else typed(value) for value in (self.a, self.b))
        return {"key": self.key, "kind": self.kind, "a": a, "b": b, "note": self.note}


def _inner_lines(key: str, a: Value, b: Value) -> Iterator[str]:
    """Yield two values of one type: long texts by lines, arrays by the items that differ."""
    head = f"{key}  {a.gguf_type}"
    if isinstance(a.data, str) and isinstance(b.data, str) and "\n" in a.data + b.data:
        import difflib  # here, because few values are long texts

        yield f"  {head}"
        for line in difflib.unified_diff(a.data.splitlines(), b.data.splitlines(), lineterm="", n=1):
            if not line.startswith(("---", "+++")):
                yield f"{line[:1]} {line[1:]}" if line[:1] in "-+ " else f"  {line}"
    elif a.type is ValueType.ARRAY and a.element is not ValueType.ARRAY and len(a.data) == len(b.data) > SHORT_ARRAY:
        differing = _differing_items(a, b, len(a.data))
        yield f"  {head}  {len(differing)} of {len(a.data)} items differ"
        for i in differing[:SHOWN_ITEMS]:
            for sign, value in (("-", a), ("+", b)):
                item = value.data[i]
                yield f"{sign} [{i}] {quote(item.item() if isinstance(item, np.generic) else item)}"
    else:
        yield f"- {head}  {brief(a)}"
        yield f"+ {head}  {brief(b)}"


def _differing_items(a: Value, b: Value, count: int) -> list[int]:
    """Return which of the first `count` items differ; NaN is what NaN was."""
    if isinstance(a.data, np.ndarray) or isinstance(b.data, np.ndarray):
        x, y = np.asarray(a.data)[:count], np.asarray(b.data)[:count]
        indices: list[int] = np.flatnonzero((x != y) & ~((x != x) & (y != y))).tolist()
        return indices
    return [i for i, (x, y) in enumerate(zip(plain(a), plain(b), strict=False)) if x != y]


def compare_metadata(
    a: Metadata, b: Metadata, ignored: tuple[str, ...] = (), renamed: Mapping[str, str] | None = None
) -> Iterator[KeyDifference]:
    """Yield differences: keys in A's order, then those that only B has.

    ignored: beginnings of keys that don't count. renamed: names in A by those that they have in B.
    """
    old_keys = renamed or {}
    names = {old: new for new, old in old_keys.items()}
    for old in a:
        key, value = names.get(old, old), a.value(old)
        after = b.value(key) if key in b and old_keys.get(key, key) == old else None
        if not key.startswith(ignored) and (key != old or value != after):
            yield KeyDifference(key, value, after, old if key != old else None)
    for key in b:
        if (key not in a or key in names) and key not in old_keys and not key.startswith(ignored):
            yield KeyDifference(key, None, b.value(key))
