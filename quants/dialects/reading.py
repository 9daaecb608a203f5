"""How to read a dialect's format: its layout, and the meaning of its numbers as values or in another format."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from .bits import Fields, Layout

Floats = NDArray[np.float32]
Heads = NDArray[np.uint8]

Decode = Callable[[Heads, Fields], Floats]
Restate = Callable[[Heads, Fields], Fields]
BYTES = {n: np.dtype([("bytes", "u1", n)]) for n in range(2, 513)}


@dataclass(frozen=True)
class Reading:
    """A format of a dialect, and how to read it.

    layout: of the rows that are stored together, a block of each. values(heads, fields): float32 (n, blocks, values of
    a block), of heads (n, bytes before a row's blocks) and fields (n, blocks, count). restated(heads, fields): the
    fields of the format that holds the same values; without it they are the same numbers in other places. Both None
    where bytes are only copied.
    """

    format: Format
    layout: Callable[[], Layout] | None = None
    values: Decode | None = None
    restated: Restate | None = None


def half(bits: NDArray[Any]) -> Floats:
    """Return halves, given as their bits, as float32 of the same shape."""
    return np.ascontiguousarray(bits, np.uint16).view(np.float16).astype(np.float32)


def head(heads: Heads) -> Floats:
    """Return the number that a row starts with, a half or (4 bytes and more) a float32: (n, 1, 1)."""
    dtype = np.dtype("<f2") if heads.shape[1] == 2 else np.dtype("<f4")
    raw = np.ascontiguousarray(heads[:, : dtype.itemsize])
    numbers: Floats = raw.view(dtype).astype(np.float32).reshape(-1, 1, 1)
    return numbers


def scaled(scales: Floats, numbers: NDArray[Any]) -> Floats:
    """Return numbers (n, blocks, count) times the scale of their part of the block: scales (n, blocks, parts)."""
    n, blocks, count = numbers.shape
    parts = scales.shape[-1]
    by_part = numbers.reshape(n, blocks, parts, count // parts).astype(np.float32)
    by_part *= scales[..., None]
    return by_part.reshape(n, blocks, count)


def signed(numbers: NDArray[Any], zero: int) -> Floats:
    """Return unsigned numbers minus the stored zero, as float32."""
    values: Floats = numbers.astype(np.float32) - np.float32(zero)
    return values


def dialect_format(
    dialect: str,
    name: str,
    number: int,
    values: int,
    size: int,
    *,
    same: str | None = None,
    head: int = 0,
    together: int = 1,
    tail: int = 0,
    codec: bool = True,
) -> Format:
    """Return a Format of a dialect. same: ggml's format with the same values."""
    return Format(
        name,
        number,
        values,
        BYTES[size],
        codec="quants.dialects.codec" if codec else None,
        dialect=dialect,
        same_values=same,
        head_bytes=head,
        rows_together=together,
        tail_bytes=tail,
    )
