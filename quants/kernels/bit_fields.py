"""Kernels for fields of a few bits anywhere in blocks of bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import Bytes, Offsets
from .jit import kernel


@kernel
def put_bits(
    numbers: NDArray[Any], count: int, first: int, bits: int, places: Offsets, blocks: Bytes, size: int
) -> None:
    """Write `bits` bits of each number, from bit `first` of it on, to its block. All arrays are flat.

    numbers (blocks, count): unsigned. blocks (blocks, size). places (count,): which of its bits is a number's lowest.
    """
    for b in range(blocks.size // size):
        for i in range(count):
            left, at = bits, places[i]
            number = np.int64(numbers[b * count + i]) >> first
            while left > 0:
                shift = at & 7
                mask = ((1 << min(left, 8 - shift)) - 1) << shift
                byte = b * size + (at >> 3)
                blocks[byte] = (blocks[byte] & ~mask) | ((number << shift) & mask)
                number, at, left = number >> (8 - shift), at + 8 - shift, left - (8 - shift)


@kernel
def take_bits(numbers: NDArray[np.uint16], count: int, bits: int, places: Offsets, blocks: Bytes, size: int) -> None:
    """Read numbers of `bits` bits: the inverse of `put_bits`."""
    for b in range(blocks.size // size):
        for i in range(count):
            number, got, at = 0, 0, places[i]
            while got < bits:
                number |= np.int64(blocks[b * size + (at >> 3)]) >> (at & 7) << got
                at, got = at + 8 - (at & 7), got + 8 - (at & 7)
            numbers[b * count + i] = number & ((1 << bits) - 1)
