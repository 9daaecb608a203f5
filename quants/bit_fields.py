"""Read and write fields of a few bits in blocks, at the bit positions that a format declares."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import Bits, Plane
from .kernels.bit_fields import put_bits, take_bits

Bytes = NDArray[np.uint8]


@cache
def _places(where: Bits | Plane, count: int) -> NDArray[np.int64]:
    return where.where(count)


def put(where: Bits | Plane, blocks: Bytes, numbers: NDArray[Any], first: int = 0) -> None:
    """Write unsigned numbers (n, count), from their bit `first` on, into blocks (n, bytes); all other bits stay."""
    places, flat = _places(where, numbers.shape[1]), np.ascontiguousarray(numbers).reshape(-1)
    put_bits(flat, len(places), first, where.bits, places, blocks.reshape(-1), blocks.shape[1])


def put_parts(parts: Iterable[Bits | Plane], blocks: Bytes, numbers: NDArray[Any]) -> None:
    """Write numbers (n, count) whose bits lie in several fields, the lowest bits in the first."""
    first = 0
    for part in parts:
        put(part, blocks, numbers, first)
        first += part.bits


def take(where: Bits | Plane, blocks: Bytes, count: int) -> NDArray[np.uint16]:
    """Return the first `count` numbers of blocks (n, bytes): uint16 (n, count)."""
    numbers = np.empty((len(blocks), count), np.uint16)
    take_bits(numbers.reshape(-1), count, where.bits, _places(where, count), blocks.reshape(-1), blocks.shape[1])
    return numbers
