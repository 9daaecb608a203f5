"""Formats that forks of llama.cpp have, and ggml once had: read, never written anew.

A number may mean different blocks in different forks. Which it is, a tensor's size tells. Nothing here is loaded where
a file's tensors are ggml's own.
"""

from functools import cache

from ..errors import FormatError
from ..format import Format
from . import interleaved, iqk, low_bits
from .reading import Reading


@cache
def readings() -> dict[str, Reading]:
    """Return every format of a dialect, and how it is read, by name."""
    return {each.format.name: each for each in (*interleaved.READINGS, *iqk.READINGS, *low_bits.READINGS)}


def meanings(ggml_type: int) -> tuple[Format, ...]:
    """Return the formats that forks store under a number, other than ggml's own."""
    return tuple(each.format for each in readings().values() if each.format.ggml_type == ggml_type)


def reading(form: Format) -> Reading:
    """Return how a format of a dialect is read. Raises FormatError for one whose blocks are only copied."""
    found = readings()[form.name]
    if found.layout is None:
        raise FormatError(f"{form.name} tensors of {form.dialect} can be copied, but not decoded")
    return found
