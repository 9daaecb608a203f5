"""Differences between values and their reference, in one pass at the speed of memory."""

import numpy as np
from numpy.typing import NDArray

from .blocks import flat
from .jit import kernel
from .lane_memory import load, store
from .lanes import LANES, absolute, every, larger

Floats = NDArray[np.float32]

PIECE = 1024  # values whose squares are summed in single precision before they go to the double one
ZERO = np.float32(0)


def deviation(values: Floats, wanted: Floats) -> tuple[float, float]:
    """Return the sum of the squared differences of two float32 arrays of one shape, and the largest difference."""
    result = np.zeros(2)
    _deviation(flat(values), flat(wanted), np.empty(LANES, np.float32), result)
    return float(result[0]), float(result[1])


@kernel
def _deviation(values: Floats, wanted: Floats, lanes: Floats, result: NDArray[np.float64]) -> None:
    squares, largest = 0.0, every(ZERO)
    whole = values.size - values.size % LANES
    for start in range(0, whole, PIECE):
        total = every(ZERO)
        for i in range(start, min(start + PIECE, whole), LANES):
            difference = load(values, i) - load(wanted, i)
            total += difference * difference
            largest = larger(largest, absolute(difference))
        store(lanes, 0, total)
        for i in range(LANES):
            squares += np.float64(lanes[i])
    store(lanes, 0, largest)
    peak = 0.0
    for i in range(LANES):
        peak = max(peak, np.float64(lanes[i]))
    for i in range(whole, values.size):
        rest = np.float64(values[i] - wanted[i])
        squares += rest * rest
        peak = max(peak, abs(rest))
    result[0], result[1] = squares, peak
