"""Numbered blocks of an image or video model."""

import re
from collections import defaultdict
from collections.abc import Iterable

NUMBERED = re.compile(r"^(.*?)\.(\d{1,9})\.(.*)$")
LISTS = ("blocks", "layers")  # ends of names of blocks whose numbers have no gaps


def missing_block(names: Iterable[str]) -> tuple[str, int] | None:
    """Return the first block that is missing among numbered ones, and the last number; None for no gap."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in names:
        if match := NUMBERED.match(name):
            numbers[match[1]].add(int(match[2]))
    for stem, present in numbers.items():
        gap = next((number for number in range(len(present)) if number not in present), None)
        if stem.endswith(LISTS) and gap is not None:
            return f"{stem}.{gap}", max(present)
    return None
