"""Blocks with other scales than the encoder's: those near it are tried on weights as they are corrected by then."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .bit_fields import put, take
from .codes import Scale

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint16]

# How much a squared error counts in the choice of a scale although later columns make up for it: what they are burdened
# with is not seen there.
HELD_BACK = np.float32(0.05)


def scale_numbers(scale: Scale, blocks: Bytes, groups: int) -> Numbers:
    """The numbers of blocks (n, bytes): uint16 (n, groups)."""
    numbers, first = np.zeros((len(blocks), groups), np.uint16), 0
    for part in scale.parts:
        numbers |= take(part, blocks, groups) << np.uint16(first)
        first += part.bits
    return numbers


def put_scales(scale: Scale, blocks: Bytes, numbers: Numbers) -> None:
    """Write numbers (n, groups) into blocks (n, bytes)."""
    first = 0
    for part in scale.parts:
        put(part, blocks, numbers, first)
        first += part.bits


def with_scales_near(
    blocks: Bytes, groups: int, tried: Sequence[tuple[Scale | None, Sequence[int]]]
) -> list[Bytes]:
    """The blocks (n, bytes), and copies with other scales. tried: how many of its distances a number is moved."""
    found = [blocks]
    for scale, moves in tried:
        if scale is None:
            continue
        numbers = scale_numbers(scale, blocks, groups).astype(np.int64)
        for move in moves:
            copy = blocks.copy()
            moved = np.clip(numbers + move * scale.apart, 0, (1 << scale.bits) - 1)
            put_scales(scale, copy, moved.astype(np.uint16))
            found.append(copy)
    return found


def take_scales(
    scales: Sequence[Scale | None], blocks: Bytes, tried: Sequence[Bytes], which: NDArray[np.uint8]
) -> None:
    """Give groups of blocks the scales of those of `tried` that `which` (n, groups) says."""
    for scale in scales:
        if scale is not None:
            numbers = [scale_numbers(scale, each, which.shape[1]) for each in tried]
            put_scales(scale, blocks, np.choose(which, numbers))
