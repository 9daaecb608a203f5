"""Try scales near the encoder's own on weights that error feedback has corrected."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bit_fields import put_parts, take
from .codes import Scale

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint16]

# Weight of a squared error in the choice of a scale, although later columns make up for it: the cost to those columns
# is not visible there.
HELD_BACK = np.float32(0.05)


def scale_numbers(scale: Scale, blocks: Bytes, groups: int) -> Numbers:
    """Return the numbers of blocks (n, bytes): uint16 (n, groups)."""
    numbers, first = np.zeros((len(blocks), groups), np.uint16), 0
    for part in scale.parts:
        numbers |= take(part, blocks, groups) << np.uint16(first)
        first += part.bits
    return numbers


class Tried(NamedTuple):
    """Blocks with the scales to try, uint8 (tried, n, bytes), the encoder's first, and their scale numbers.

    numbers: of scale and minimum, uint16 (tried, n, groups).
    """

    blocks: Bytes
    numbers: list[tuple[Scale, Numbers]]

    def take(self, blocks: Bytes, which: NDArray[np.uint8]) -> None:
        """Give each group of blocks (n, bytes) the scales that `which` (n, groups) selects."""
        for scale, numbers in self.numbers:
            put_parts(scale.parts, blocks, np.choose(which, numbers))


def with_scales_near(blocks: Bytes, groups: int, moves: Sequence[tuple[Scale | None, Sequence[int]]]) -> Tried:
    """Return blocks (n, bytes) with other scales. moves: by how many distances (`Scale.apart`) a number is moved."""
    moves = [(scale, each) for scale, each in moves if scale is not None]
    count, first, tried = 1 + sum(len(each) for _, each in moves), 1, []
    copies = np.tile(blocks, (count, 1))
    for scale, each in moves:
        assert scale is not None
        numbers = np.tile(scale_numbers(scale, blocks, groups), (count, 1, 1))
        moved = numbers[0].astype(np.int64) + scale.apart * np.array(each, np.int64)[:, None, None]
        numbers[first : first + len(each)] = np.clip(moved, 0, (1 << scale.bits) - 1)
        first += len(each)
        put_parts(scale.parts, copies, numbers.reshape(-1, groups))
        tried.append((scale, numbers))
    return Tried(copies.reshape(count, *blocks.shape), tried)
