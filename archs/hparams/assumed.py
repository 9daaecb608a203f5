"""A value that a file does not have and that counts all the same."""

from dataclasses import dataclass
from typing import Any

DEFAULT = "absent: llama.cpp's default"


@dataclass(frozen=True)
class Assumed:
    """What a key means that a file lacks.

    key: in full. reason: why it is this value, and what may be wrong with it. doubtful: it may well be another one in
    the model that the file holds.
    """

    key: str
    value: Any
    reason: str = DEFAULT
    doubtful: bool = True
