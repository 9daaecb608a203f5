"""Limit how many columns of a product's input are handled together, so that a layer's matrices fit into memory.

The matrix of inputs of width 53,248 takes 11 GB. Its off-diagonal part describes relations between columns. For columns
that are stored far apart it can be left out. The weights and the limit alone decide what is left out, so bytes do not
depend on the machine.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quants import Tensor

from ..measurement.perplexity import windows_at_once
from ..models.model import Model

if TYPE_CHECKING:
    from runtime.layer import Device
    from runtime.model import RunningModel

DEFAULT_MEMORY = 8_000_000_000
MIN_COLUMNS = 256  # columns that always stand together: blocks of all formats fit
AT_ONCE = 2  # triangles that are found at a time, however many threads there are
# For each number of a matrix: numbers of sums over inputs and over those held back, and of both, but for experts, how
# far they drifted; bytes, while a weight is encoded, of their means, a triangle for each damping, and a correction; of
# experts the mean of all instead; while triangles are found, each of them.
SUMS, DRIFTS, OWN, TRIANGLE = 2, 2, 2 * 8 + 2 * 4 + 3 * 4 + 4, 28
OF_SUMS, OF_SUMS_ON_DEVICE = 4, 8  # bytes of a number of the sums
DEVICE_SHARE = 0.4  # of a device's memory that matrices may take
VALUES_SHARE = 0.25  # that the values of windows that run together may take


def columns_within(memory: int, tensors: Iterable[Tensor], of_sums: int = OF_SUMS) -> int:
    """Return the largest number of columns for which the input matrices of all these weights fit into `memory`.

    Counts as if no two weights shared their input. of_sums: bytes of a number of a sum. Returns at least MIN_COLUMNS,
    which a small limit may not fit.
    """
    inputs = [(tensor.shape[0] if len(tensor.shape) == 3 else 1, tensor.width) for tensor in tensors]
    widest = max((width for _, width in inputs), default=MIN_COLUMNS)

    def needed(columns: int) -> int:
        numbers = [(experts, width * min(columns, width)) for experts, width in inputs]
        sums = sum(experts * count * (SUMS + DRIFTS * (experts == 1)) for experts, count in numbers)
        return of_sums * sums + OWN * max(count for _, count in numbers) + AT_ONCE * TRIANGLE * columns * columns

    for parts in range(1, -(-widest // MIN_COLUMNS)):
        columns = -(-widest // parts)
        if needed(columns) <= memory:
            return columns
    return MIN_COLUMNS


def columns_on(device: "Device | None", memory: int, tensors: Iterable[Tensor]) -> int:
    """Return `columns_within` for matrices on a device; None for those in the processor's memory."""
    if device is None:
        return columns_within(memory, tensors)
    limit = memory if device.memory is None else min(memory, int(DEVICE_SHARE * device.memory))
    return columns_within(limit, tensors, OF_SUMS_ON_DEVICE)


def windows_on(net: "RunningModel", model: Model, n_ctx: int) -> int:
    """Return how many windows of n_ctx tokens run together through a layer, at least one."""
    from runtime.decoder import graph_of
    from runtime.graph.placement import bytes_of_values

    count = windows_at_once(model, n_ctx, net)
    if net.device is not None and net.device.memory is not None:
        graph, room = graph_of(net.network), VALUES_SHARE * net.device.memory
        while count > 1 and bytes_of_values(graph, count, n_ctx) > room:
            count //= 2
    return count
