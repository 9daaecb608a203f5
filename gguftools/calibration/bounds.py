"""Limit how many columns of a product's input are handled together, so that a layer's matrices fit into memory.

The matrix of inputs of width 53,248 takes 11 GB. Its off-diagonal part describes relations between columns. For columns
that are stored far apart it can be left out. The weights and the limit alone decide what is left out, so bytes do not
depend on the machine.
"""

from collections.abc import Iterable

from quants import Tensor

DEFAULT_MEMORY = 8_000_000_000
MIN_COLUMNS = 256  # columns that always stand together: blocks of all formats fit
AT_ONCE = 2  # triangles that are found at a time, however many threads there are
# Bytes for each number of a matrix: sums over inputs and over those held back, and of both, but for experts, how far
# they drifted; while a weight is encoded, their means, a triangle for each damping, and a correction; of experts the
# mean of all instead; while triangles are found, each of them.
SUMS, DRIFTS, OWN, TRIANGLE = 2 * 4, 2 * 4, 2 * 8 + 2 * 4 + 3 * 4 + 4, 28


def columns_within(memory: int, tensors: Iterable[Tensor]) -> int:
    """Return the largest number of columns for which the input matrices of all these weights fit into `memory`.

    Counts as if no two weights shared their input. Returns at least MIN_COLUMNS, which a small limit may not fit.
    """
    inputs = [(tensor.shape[0] if len(tensor.shape) == 3 else 1, tensor.width) for tensor in tensors]
    widest = max((width for _, width in inputs), default=MIN_COLUMNS)

    def needed(columns: int) -> int:
        numbers = [(experts, width * min(columns, width)) for experts, width in inputs]
        sums = sum(experts * count * (SUMS + DRIFTS * (experts == 1)) for experts, count in numbers)
        return sums + OWN * max(count for _, count in numbers) + AT_ONCE * TRIANGLE * columns * columns

    for parts in range(1, -(-widest // MIN_COLUMNS)):
        columns = -(-widest // parts)
        if needed(columns) <= memory:
            return columns
    return MIN_COLUMNS
