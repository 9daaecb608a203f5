"""Values assumed for keys that a file lacks."""

from dataclasses import dataclass
from typing import Any

DEFAULT = "absent: llama.cpp's default"


@dataclass(frozen=True)
class Assumed:
    """The value assumed for a key that a file lacks.

    key: in full. reason: why it is this value, and what may be wrong with it. doubtful: it may well differ in the model
    that the file holds.
    """

    key: str
    value: Any
    reason: str = DEFAULT
    doubtful: bool = True
