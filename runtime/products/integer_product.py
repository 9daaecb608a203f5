"""Products of many rows with stored weights in 16-bit integers (see `kernels.int16`).

The inputs are packed once, for all weights they are multiplied with. Each thread decodes, packs and multiplies tiles of
its own; the inputs of a weight with few rows are shared among threads instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quants import Tensor
from quants.kernels.lane_memory import rooms

from ..arrays import Floats
from ..kernels import int16
from ..kernels.int16 import BLOCK, PAIRS, ROWS, TOKENS
from ..kernels.threads import Span, parallel, shares, spans

MIN_INPUTS = 48  # below, packing takes longer than it saves
# Below, it saves less than a quarter of a millisecond a text, which is not worth its rounding. Windows of LONG tokens
# come by the hundred, so that half as much counts.
MIN_WIDTH, MIN_WEIGHTS, MIN_WORK, LONG = 256, 1 << 15, 1 << 26, 512
PIECE = 1 << 16  # weights decoded at a time: a quarter of a MB stays in a core's cache until it is packed
COLUMNS = 4 * ROWS  # of a product folded at once
OPS = 1 << 27  # multiplications of a piece of work: about a millisecond


@dataclass(frozen=True)
class Packed:
    """Rows as integers: pairs of int16 as int32, flat, and float32 scales, flat. rows: without those of padding."""

    pairs: NDArray[np.int32]
    scales: Floats
    rows: int
    blocks: int

    def part(self, start: int, stop: int) -> "Packed":
        """Return rows start … stop, start a multiple of TOKENS."""
        width = PAIRS * self.blocks
        return Packed(self.pairs[start * width :], self.scales[start * self.blocks :], stop - start, self.blocks)


def is_faster(inputs: int, rows: int, width: int) -> bool:
    """Return whether such a product of these sizes is faster than in float32."""
    return inputs >= MIN_INPUTS and rows * width >= MIN_WEIGHTS and int16.available()


def saves(tokens: int, rows: int, width: int) -> bool:
    """Return whether the product, for a text of so many tokens, saves enough time to be worth its rounding.

    It does not depend on how many texts run together, so that measurements are reproducible.
    """
    min_work = MIN_WORK // 2 if tokens >= LONG else MIN_WORK
    return width >= MIN_WIDTH and tokens * rows * width >= min_work


def packed(x: Floats, threads: int) -> Packed:
    """Return x (n, width) as integers. A row with infinity or NaN gives NaN."""
    rows, width = x.shape
    if width % BLOCK:
        x = np.pad(x, ((0, 0), (0, -width % BLOCK)))
    blocks = x.shape[1] // BLOCK
    whole = -(-rows // TOKENS) * TOKENS
    pairs, scales = rooms(whole * blocks * PAIRS // 16, -(-whole * blocks // 16))
    pairs, scales = pairs.view(np.int32), scales[: whole * blocks]
    if whole > rows:  # padding of the last group
        last = slice((whole - TOKENS) * blocks, None)
        pairs.reshape(-1, PAIRS)[last], scales[last] = 0, 0
    flat, shorts = np.ascontiguousarray(x).reshape(-1), pairs.view(np.int16)

    def pack(start: int, stop: int) -> None:
        int16.pack_inputs(flat, blocks * BLOCK, blocks, shorts, scales, start, stop)

    parallel(pack, shares(rows, OPS // 64 // max(1, flat.size // rows), threads), threads)
    return Packed(pairs, scales, rows, blocks)


def multiply(x: Packed, weight: Tensor, first: int, last: int, out: Floats, threads: int) -> None:
    """Compute out[:, i] = x times row first + i of the weight, up to row last - 1. out: float32 (x.rows, last -
    first).
    """
    flat, stride = out.reshape(-1), out.shape[1]

    def share(start: int, stop: int) -> None:
        for (begin, end), (top, bottom) in work[start:stop]:
            part, sums = x.part(top, bottom), room_for_sums(bottom - top)
            for row, count, tile, scales in tiles(weight, first + begin, first + end):
                int16.multiply(
                    part.pairs,
                    part.scales,
                    tile,
                    scales,
                    part.rows,
                    part.blocks,
                    sums,
                    flat[top * stride :],
                    row - first,
                    count,
                    stride,
                )

    work = pieces(x.rows, last - first, BLOCK * x.blocks, threads)
    parallel(share, spans(len(work), 1), threads)


def columns(x: Packed, weight: Tensor, first: int, last: int) -> Iterator[tuple[int, Floats]]:
    """Yield (number of the first row, float32 (x.rows, rows)): x times rows first … last - 1, at most COLUMNS at a
    time.

    Each array is valid until the next is requested.
    """
    room, sums = np.empty(x.rows * COLUMNS, np.float32), room_for_sums(x.rows)
    product = room[:0]
    for row, count, tile, scales in tiles(weight, first, last):
        begin = first + (row - first) // COLUMNS * COLUMNS
        if row == begin:
            stride = min(COLUMNS, last - begin)
            product = room[: x.rows * stride]
        int16.multiply(x.pairs, x.scales, tile, scales, x.rows, x.blocks, sums, product, row - begin, count, stride)
        if row + count == begin + stride:
            yield begin, product.reshape(x.rows, stride)


def room_for_sums(rows: int) -> Floats:
    """Return the scratch memory that `int16.multiply` needs for so many inputs."""
    return rooms((rows + TOKENS) * ROWS // 16)[0]


def pieces(inputs: int, rows: int, width: int, threads: int) -> list[tuple[Span, Span]]:
    """Return rows of the weight and of the input that a thread multiplies at a time."""
    groups = -(-rows // ROWS)
    ops = ROWS * width * inputs  # of a group
    if groups % threads and groups < 8 * threads and groups * ops > OPS // 4:
        tokens = -(-inputs // (threads * TOKENS)) * TOKENS
        return [((0, rows), each) for each in spans(inputs, tokens)]
    step = max(1, min(OPS // ops, -(-groups // (4 * threads))))
    return [(each, (0, inputs)) for each in spans(rows, step * ROWS)]


def tiles(weight: Tensor, first: int, last: int) -> Iterator[tuple[int, int, NDArray[np.int32], Floats]]:
    """Yield (number of its first row, rows, pairs, scales) of tiles of ROWS rows; each is valid until the next is
    requested.
    """
    blocks = -(-weight.width // BLOCK)
    floats, scales, across = rooms(blocks * ROWS * PAIRS // 16, ROWS // 16, BLOCK)
    pairs, offsets = floats.view(np.int32), np.empty(16, np.int64)
    decode = weight.format.load_codec().decode  # not `decode_small`, which is made for few bytes
    step = max(ROWS, PIECE // max(1, weight.width) // ROWS * ROWS)
    for start, stop in spans(last - first, step):
        values = decode(weight.format, np.ascontiguousarray(weight.raw(first + start, first + stop)))
        if weight.width % BLOCK:
            values = np.pad(values, ((0, 0), (0, -weight.width % BLOCK)))
        for row in range(0, len(values), ROWS):
            rows = values[row : row + ROWS]
            int16.pack_weights(rows.reshape(-1), len(rows), blocks * BLOCK, blocks, across, offsets, pairs, scales)
            yield first + start + row, len(rows), pairs, scales
