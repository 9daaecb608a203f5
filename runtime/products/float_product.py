"""Products of some rows with stored weights in float32, the same on any number of threads (see `kernels.floats`)."""

from collections.abc import Iterator

import numpy as np

from quants import Tensor
from quants.kernels.lane_memory import rooms
from quants.kernels.lanes import LANES

from ..arrays import Floats
from ..kernels import floats
from ..kernels.floats import ROWS, TOKENS
from ..kernels.threads import parallel, spans
from .integer_product import PIECE, pieces

MIN_INPUTS, MIN_WEIGHTS = 24, 1 << 14  # below, packing takes longer than it saves


def is_faster(inputs: int, rows: int, width: int) -> bool:
    """Return whether such a product of these sizes is faster than with BLAS."""
    return inputs >= MIN_INPUTS and rows * width >= MIN_WEIGHTS and floats.available()


def multiply(x: Floats, weight: Tensor, first: int, last: int, out: Floats, threads: int) -> None:
    """Compute out[:, i] = x times row first + i of the weight, up to row last - 1. out: float32 (n, last - first)."""
    width, rows = -(-weight.width // LANES) * LANES, len(x)
    if width > weight.width:
        x = np.pad(x, ((0, 0), (0, width - weight.width)))
    whole, flat, stride = rows // TOKENS * TOKENS, out.reshape(-1), out.shape[1]
    rest = np.zeros((TOKENS, width), np.float32)  # padding of the last group
    rest[: rows - whole] = x[whole:]

    def share(start: int, stop: int) -> None:
        tile, across = rooms(width * ROWS // 16, LANES * LANES // 16)
        offsets = np.empty(LANES, np.int64)
        for (begin, end), (top, bottom) in work[start:stop]:
            sums = rooms((bottom - top + TOKENS) * ROWS // 16)[0]
            middle = min(bottom, whole)
            parts = [(x[top:middle], top, middle - top), (rest, middle, bottom - middle)]
            for row, values in _decoded(weight, first + begin, first + end, width):
                floats.pack_weights(values.reshape(-1), len(values), width, across, offsets, tile)
                for inputs, at, count in parts:
                    floats.multiply(
                        inputs.reshape(-1),
                        width,
                        tile,
                        count,
                        sums,
                        flat[at * stride :],
                        row - first,
                        len(values),
                        stride,
                    )

    work = pieces(rows, last - first, width, threads)
    parallel(share, spans(len(work), 1), threads)


def _decoded(weight: Tensor, first: int, last: int, width: int) -> Iterator[tuple[int, Floats]]:
    """Yield (number of its first row, float32 (rows, width)) of ROWS rows at a time, padded with zeros."""
    decode = weight.format.load_codec().decode
    step = max(ROWS, PIECE // max(1, weight.width) // ROWS * ROWS)
    for start, stop in spans(last - first, step):
        values = decode(weight.format, np.ascontiguousarray(weight.raw(first + start, first + stop)))
        if width > weight.width:
            values = np.pad(values, ((0, 0), (0, width - weight.width)))
        for row in range(0, len(values), ROWS):
            yield first + start + row, np.ascontiguousarray(values[row : row + ROWS], np.float32)
