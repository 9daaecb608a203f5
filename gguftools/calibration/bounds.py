"""How many columns of a product's input are seen together, so that the matrices of a layer fit into memory.

The matrix of inputs that are 53,248 wide has 11 GB. What is beside its diagonal says what columns have to do with each
other; of columns that are stored far from each other it can be left out. What is left out follows from the weights and
the bound alone, so that bytes do not depend on the machine.
"""

from collections.abc import Iterable

from quants import Tensor

DEFAULT_MEMORY = 8_000_000_000
LEAST = 256  # columns that always stand together: blocks of all formats fit
SUMMED = 4 * 2  # bytes of each number that is summed over inputs, and over those held back
OWN = 3 * 8 + 3 * 4  # of each number of a weight's matrix: found, held back, mean of experts; a triangle a damping
FACTORED = 3 * 28  # of each number of a block whose triangles are found, for every damping at once


def columns_within(memory: int, tensors: Iterable[Tensor]) -> int:
    """The most columns that stand together where sums over the inputs of all these weights are to fit into `memory`.

    Halved until they do, down to LEAST, so that a bound may be too small to be kept.
    """
    inputs = [(tensor.shape[0] if len(tensor.shape) == 3 else 1, tensor.width) for tensor in tensors]
    columns = max((width for _, width in inputs), default=LEAST)

    def needed() -> int:
        sums = sum(experts * width * min(columns, width) for experts, width in inputs)
        work = max((width * min(columns, width) for _, width in inputs), default=0)
        return SUMMED * sums + OWN * work + FACTORED * columns * columns

    while needed() > memory and columns > LEAST:
        columns = max(LEAST, -(-columns // 2))
    return columns
