"""Sizes as people write them."""

from __future__ import annotations

import re

from quants.errors import OptionError

SIZE = re.compile(r"(\d+)\s*([KMGT]?)i?B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """A size such as `500M` or `2G`, in bytes: decimal units, as in the names of split sets. Raises OptionError."""
    found = SIZE.fullmatch(text.strip())
    if not found or not int(found[1]):
        raise OptionError(f"{text!r} is not a size", hint="for example 500M or 2G")
    thousands: int = 1000 ** " KMGT".index(found[2].upper() or " ")
    return int(found[1]) * thousands
