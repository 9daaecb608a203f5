"""Block-diagonal matrices, so that wide ones fit into memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from ..arrays import Doubles, Floats

ALIGNED = 256  # columns: a multiple of every format's block size


def column_blocks(width: int, max_width: int) -> list[slice]:
    """Return columns in blocks of about equal size, at most `max_width` if that is at least ALIGNED."""
    size = width
    if width > max_width:
        max_width = max(max_width // ALIGNED, 1) * ALIGNED
        size = -(-width // -(-width // max_width) // ALIGNED) * ALIGNED
    return [slice(start, min(start + size, width)) for start in range(0, width, size)]


@dataclass(frozen=True)
class BlockDiagonal:
    """A square matrix: blocks (columns, columns) along its diagonal, float64 or float32; all else counts as zero."""

    blocks: tuple[Doubles | Floats, ...]

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def __add__(self, other: "BlockDiagonal") -> "BlockDiagonal":
        return replace(self, blocks=tuple(a + b for a, b in zip(self.blocks, other.blocks, strict=True)))

    def __mul__(self, factor: float) -> "BlockDiagonal":
        return replace(self, blocks=tuple(block * factor for block in self.blocks))

    def columns(self) -> Iterator[tuple[slice, Doubles | Floats]]:
        """Yield the columns of each block, and the block."""
        start = 0
        for block in self.blocks:
            yield slice(start, start + len(block)), block
            start += len(block)

    def single(self) -> "BlockDiagonal":
        """Return the matrix in float32."""
        return BlockDiagonal(tuple(block.astype(np.float32, copy=False) for block in self.blocks))

    def diagonal(self) -> Doubles | Floats:
        return np.concatenate([block.diagonal() for block in self.blocks])

    def along(self, left: Floats, right: Floats) -> float:
        """Return the sum of l M r^T over the rows of both (rows, width)."""
        total = 0.0
        for here, block in self.single().columns():
            reached = left[:, here] @ block
            total += float(np.einsum("ij,ij->", reached, right[:, here], dtype=np.float64))
        return total

    def times(self, rows: Floats) -> Floats:
        """Return rows (n, width) @ M in float32."""
        return np.concatenate([rows[:, here] @ block for here, block in self.single().columns()], axis=1)

    def whole(self) -> Doubles:
        """Return the full matrix, float64 (width, width)."""
        matrix = np.zeros((len(self), len(self)))
        for here, block in self.columns():
            matrix[here, here] = block
        return matrix


def weighted_sum(matrices: Iterable[tuple[BlockDiagonal, float]]) -> BlockDiagonal:
    """Return the weighted sum of at least one matrix."""
    return reduce(BlockDiagonal.__add__, (matrix * weight for matrix, weight in matrices))
