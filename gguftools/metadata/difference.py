"""What differs between the metadata of two models, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archs.metadata import Metadata, Value, ValueType

from .text import brief, plain, type_name
from .values import same


@dataclass(frozen=True)
class KeyDifference:
    """One metadata key. kind: "added" (only B has it), "removed" (only A), "changed", "type" (stored otherwise).

    a, b: type and value of each side in short; note: where long arrays part.
    """

    key: str
    kind: str
    a: str | None
    b: str | None
    note: str | None = None


def compare_metadata(a: Metadata, b: Metadata, ignored: tuple[str, ...] = ()) -> Iterator[KeyDifference]:
    """Keys in A's order, then those that only B has. ignored: beginnings of keys that don't count."""
    for key in dict.fromkeys((*a, *b)):
        if key.startswith(ignored):
            continue
        old, new = (side.value(key) if key in side else None for side in (a, b))
        if old is None or new is None:
            kind, note = "added" if old is None else "removed", None
        elif same(old, new):
            continue
        else:
            kind = "changed" if (old.type, old.element) == (new.type, new.element) else "type"
            note = _first_difference(old, new) if old.type is new.type is ValueType.ARRAY else None
        yield KeyDifference(key, kind, _shown(old), _shown(new), note)


def _shown(value: Value | None) -> str | None:
    return None if value is None else f"{type_name(value)} {brief(value)}"


def _first_difference(a: Value, b: Value) -> str | None:
    """Where two arrays differ first; None where items of other types are equal."""
    if (a.element is ValueType.STRING) != (b.element is ValueType.STRING):
        return None
    numbers = isinstance(a.data, np.ndarray) or isinstance(b.data, np.ndarray)
    left, right = (np.asarray(a.data), np.asarray(b.data)) if numbers else (plain(a), plain(b))
    count = min(len(left), len(right))
    if numbers:
        x, y = left[:count], right[:count]
        wrong = np.flatnonzero((x != y) & ~((x != x) & (y != y))).tolist()  # NaN is what NaN was
    else:
        wrong = [i for i in range(count) if left[i] != right[i]]
    if wrong:
        return f"{len(wrong):,} of {count:,} items differ, the first is item {wrong[0]}"
    return f"equal up to item {count:,}; lengths {len(left):,} and {len(right):,}" if len(left) != len(right) else None
