"""Products with quantized weights as llama.cpp rounds them, in 8-bit integers (see `kernels.int8`).

They equal float32 products of inputs that are rounded first, except for the rounding of float32's sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named
from quants.kernels.lane_memory import rooms

from ..arrays import Floats
from ..kernels import dots, int8, int16
from ..kernels.int8 import BLOCK, QUADS, ROWS, SUMS, TOKENS
from ..kernels.threads import parallel, shares, spans
from . import gemv
from .block_scales import OF_FORMAT
from .gemv import Vectors
from .integer_product import COLUMNS, OPS, PIECE, pieces, room_for_sums

OF_32, OF_SUPER = ("Q8_0", "Q8_1"), "Q8_K"  # formats that inputs are rounded to: the first two to the same numbers
MIN_INPUTS, MIN_WEIGHTS = 16, 1 << 14  # below, packing takes longer than it saves
SCALES_AT_ONCE = 1 << 20  # weights whose scales are read together: at most half a MB


@dataclass(frozen=True)
class Rounded:
    """Rows as llama.cpp rounds them: int8 (n, width) and float32 scales (n, width / 32) of 32 columns each."""

    numbers: NDArray[np.int8]
    scales: Floats


@dataclass(frozen=True)
class Packed:
    """`Rounded` rows in the layout of `kernels.int8`, flat. rows: without those of padding."""

    quads: NDArray[np.int32]
    scales: Floats
    sums: NDArray[np.int32]
    rows: int
    blocks: int

    def part(self, start: int, stop: int) -> "Packed":
        """Return rows start … stop, start a multiple of TOKENS."""
        at = self.blocks * start
        return Packed(self.quads[QUADS * at :], self.scales[at:], self.sums[SUMS * at :], stop - start, self.blocks)


@dataclass(frozen=True)
class Tile:
    """ROWS rows of a weight, the first `rows` of them from row `first` on; see `kernels.int8`."""

    first: int
    rows: int
    quads: NDArray[np.int32]
    scales: Floats
    minima: Floats


def rounds(weight_format: str) -> bool:
    """Return whether llama.cpp rounds inputs of such weights to 8 bits, in a supported way."""
    return weight_format in OF_FORMAT and format_named(weight_format).activations in (*OF_32, OF_SUPER)


def is_faster(inputs: int, rows: int, weight: Tensor) -> bool:
    """Return whether such a product of so many inputs with rows of this weight is faster than in float32."""
    large = inputs >= MIN_INPUTS and rows * weight.width >= MIN_WEIGHTS
    return large and rounds(weight.format.name) and int16.available()


def is_faster_for_few(inputs: int, rows: int, weight: Tensor) -> bool:
    """Return `is_faster` for few inputs, which are multiplied with the blocks as they are stored."""
    return rounds(weight.format.name) and gemv.is_faster(inputs, rows, weight)


def rounded(x: Floats, partner: str, threads: int = 1) -> Rounded:
    """Return x (n, width) rounded to blocks of `partner`, whose width divides x's."""
    rows, width = x.shape
    numbers, scales = np.empty((rows, width), np.int8), np.empty((rows, width // BLOCK), np.float32)
    flat, in_32 = np.ascontiguousarray(x, np.float32).reshape(-1), partner in OF_32
    kernel = int8.round_q8_0 if in_32 else int8.round_q8_k

    def share(start: int, stop: int) -> None:
        kernel(flat, width, numbers.reshape(-1), scales.reshape(-1), start, stop)

    parallel(share, shares(rows, OPS // 64 // max(1, width), threads), threads)
    if in_32:
        with np.errstate(over="ignore"):
            scales[:] = scales.astype(np.float16)  # which is how this scale is stored
    return Rounded(numbers, scales)


def packed(x: Rounded, threads: int = 1) -> Packed:
    """Return rounded rows for products with many rows."""
    rows, blocks = x.scales.shape
    whole = -(-rows // TOKENS) * TOKENS
    quads, scales, sums = rooms(*(whole * blocks * each // 16 + 1 for each in (QUADS, 1, SUMS)))
    quads, sums = quads.view(np.int32), sums.view(np.int32)
    if whole > rows:  # padding of the last group
        last = (whole - TOKENS) * blocks
        quads[QUADS * last :], scales[last:], sums[SUMS * last :] = 0, 0, 0
    numbers, flat, small = x.numbers.reshape(-1), x.scales.reshape(-1), quads.view(np.int8)

    def share(start: int, stop: int) -> None:
        int8.arrange_inputs(numbers, flat, blocks, small, scales, sums, start, stop)

    parallel(share, shares(rows, OPS // 64 // max(1, BLOCK * blocks), threads), threads)
    return Packed(quads, scales, sums, rows, blocks)


def as_vectors(x: Rounded) -> Vectors:
    """Return rounded rows, at most `gemv.MAX_TOKENS`, for products with the blocks as they are stored."""
    rows, width = x.numbers.shape
    made = gemv.vectors(width, rows)
    made.shorts[:, :width] = x.numbers
    scales = np.zeros((rows, made.room // BLOCK), np.float32)
    scales[:, : x.scales.shape[1]] = x.scales
    sums = made.shorts.reshape(rows, -1, 2, BLOCK // 2).sum(axis=3, dtype=np.int32)
    of_blocks = dots.SUPER // BLOCK
    numbers = made.numbers.reshape(rows, -1, dots.NUMBERS)
    numbers[:, :, :of_blocks] = scales.reshape(rows, -1, of_blocks)
    numbers[:, :, of_blocks : 2 * of_blocks] = (scales * sums.sum(axis=2)).reshape(rows, -1, of_blocks)
    numbers[:, :, 2 * of_blocks : 4 * of_blocks] = (scales[:, :, None] * sums).reshape(rows, -1, 2 * of_blocks)
    dots.spread_all(made.shorts.reshape(-1), made.numbers.reshape(-1))
    return made


def multiply(x: Packed, weight: Tensor, first: int, last: int, out: Floats, threads: int) -> None:
    """Compute out[:, i] = x times row first + i of the weight, up to row last - 1. out: float32 (x.rows, last -
    first).
    """
    flat, stride = out.reshape(-1), out.shape[1]

    def share(start: int, stop: int) -> None:
        for (begin, end), (top, bottom) in work[start:stop]:
            part, sums = x.part(top, bottom), room_for_sums(bottom - top)
            for tile in tiles(weight, first + begin, first + end):
                _multiply(part, tile, weight, sums, flat[top * stride :], tile.first - first, stride)

    work = pieces(x.rows, last - first, BLOCK * x.blocks, threads)
    parallel(share, spans(len(work), 1), threads)


def _multiply(x: Packed, tile: Tile, weight: Tensor, sums: Floats, out: Floats, column: int, stride: int) -> None:
    how = OF_FORMAT[weight.format.name]
    int8.multiply(
        x.quads,
        x.scales,
        x.sums,
        tile.quads,
        tile.scales,
        tile.minima,
        how.has_minima,
        how.zero,
        BLOCK // how.group,
        x.rows,
        x.blocks,
        sums,
        out,
        column,
        tile.rows,
        stride,
    )


def columns(x: Packed, weight: Tensor, first: int, last: int) -> Iterator[tuple[int, Floats]]:
    """Yield (number of the first row, float32 (x.rows, rows)): x times rows first … last - 1, at most COLUMNS at a
    time.

    Each array is valid until the next is requested.
    """
    room, sums = np.empty(x.rows * COLUMNS, np.float32), room_for_sums(x.rows)
    product = room[:0]
    for tile in tiles(weight, first, last):
        begin = first + (tile.first - first) // COLUMNS * COLUMNS
        if tile.first == begin:
            stride = min(COLUMNS, last - begin)
            product = room[: x.rows * stride]
        _multiply(x, tile, weight, sums, product, tile.first - begin, stride)
        if tile.first + tile.rows == begin + stride:
            yield begin, product.reshape(x.rows, stride)


def tiles(weight: Tensor, first: int, last: int) -> Iterator[Tile]:
    """Yield tiles of ROWS rows; each is valid until the next is requested."""
    how, decode = OF_FORMAT[weight.format.name], weight.format.load_codec().decode
    blocks = weight.width // BLOCK
    groups = BLOCK // how.group
    quads, scales, minima, across = rooms(blocks * QUADS * ROWS // 16, *[blocks * groups * ROWS // 16] * 2, 16)
    quads, offsets = quads.view(np.int32), np.empty(16, np.int64)
    scales[:], minima[:] = 0, 0
    for start, stop in spans(last - first, _rows_of(SCALES_AT_ONCE, weight.width)):
        raw = np.ascontiguousarray(weight.raw(first + start, first + stop))
        of_rows, minima_of_rows = how.of_rows(raw.view(weight.format.block).reshape(len(raw), -1))
        for begin, end in spans(stop - start, _rows_of(PIECE, weight.width)):
            values = decode(weight.format, raw[begin:end])
            for row in range(begin, end, ROWS):
                rows = values[row - begin : row - begin + ROWS]
                scales.reshape(-1, ROWS)[:, : len(rows)] = of_rows[row : row + len(rows)].T
                if minima_of_rows is not None:
                    minima.reshape(-1, ROWS)[:, : len(rows)] = minima_of_rows[row : row + len(rows)].T
                int8.pack_weights(
                    rows.reshape(-1),
                    len(rows),
                    weight.width,
                    blocks,
                    groups,
                    scales,
                    minima,
                    how.zero,
                    across,
                    offsets,
                    quads,
                )
                yield Tile(first + start + row, len(rows), quads, scales, minima)


def _rows_of(weights: int, width: int) -> int:
    """Return rows of about so many weights: whole tiles."""
    return max(ROWS, weights // max(1, width) // ROWS * ROWS)
