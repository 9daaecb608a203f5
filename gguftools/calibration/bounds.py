"""How many columns of a product's input are seen together, so that the matrices of a layer fit into memory.

The matrix of inputs that are 53,248 wide has 11 GB. What is beside its diagonal says what columns have to do with each
other; of columns that are stored far from each other it can be left out. What is left out follows from the weights and
the bound alone, so that bytes do not depend on the machine.
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
    """The most columns that stand together where the matrices of inputs of all these weights fit into `memory`.

    As if no two weights shared their input. MIN_COLUMNS at least, so that a bound may be too small to be kept.
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
