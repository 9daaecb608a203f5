"""Formats of llama.cpp forks and former ggml formats: read, never written.

A type number may mean different blocks in different forks. A tensor's size tells which. Nothing here is loaded if a
file's tensors are all ggml's own.
"""

from functools import cache

from ..errors import FormatError
from ..format import Format
from . import interleaved, iqk, low_bits
from .reading import Reading


@cache
def readings() -> dict[str, Reading]:
    """Return every format of a dialect and its reading, by name."""
    return {each.format.name: each for each in (*interleaved.READINGS, *iqk.READINGS, *low_bits.READINGS)}


def meanings(ggml_type: int) -> tuple[Format, ...]:
    """Return the formats that forks store under a number, other than ggml's own."""
    return tuple(each.format for each in readings().values() if each.format.ggml_type == ggml_type)


def reading(form: Format) -> Reading:
    """Return the reading of a dialect's format. Raises FormatError for one whose blocks are only copied."""
    dialect_reading = readings()[form.name]
    if dialect_reading.layout is None:
        raise FormatError(f"{form.name} tensors of {form.dialect} can be copied, but not decoded")
    return dialect_reading
