"""Scales of quantized weights as ComfyUI's files store them: read for a range of the weight's rows.

Tiles: scales are padded to multiples of 128 rows and 4 columns. 128 rows of 4 scales are 512 bytes, where the scale of
row r and column c is at (r % 32) * 16 + (r // 32) * 4 + c. Tiles are in order of rows, then of columns.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quants import Tensor
from quants.errors import ModelError

from ..spec import Floats
from ..transforms import span

Bytes = NDArray[np.uint8]
ReadBytes = Callable[[int, int], Bytes]
ReadScales = Callable[[int, int], Floats]  # of rows start … stop: (rows, groups)

FLOATS = ("F32", "F16", "BF16", "F64")
TILE_ROWS, TILE_COLUMNS = 128, 4


def row_scales(scale: Tensor, outputs: tuple[int, ...]) -> ReadScales:
    """Return the scales of rows start … stop, (rows, 1).

    scale: one number, or one for each item of the first of the dimensions `outputs`; ones at its end don't count.
    Raises ModelError for another shape.
    """
    check_floats(scale)
    if scale.size == 1:
        return lambda start, stop: np.full((stop - start, 1), scale.float32().reshape(-1)[0])
    shape = list(scale.shape)
    while shape and shape[-1] == 1:
        shape.pop()
    if tuple(shape) != outputs[: len(shape)] or not shape:
        problem = f"{scale.where} has shape {list(scale.shape)}"
        raise ModelError(f"{problem}; one number, or one for each output of {list(outputs)}, was expected")
    each = math.prod(outputs[len(shape) :])

    def read(start: int, stop: int) -> Floats:
        first, last = start // each, -(-stop // each)
        values: Floats = span(scale.float32, scale.width, first, last)
        return values[np.arange(start, stop) // each - first].reshape(-1, 1)

    return read


def block_scales(scale: Tensor, shape: tuple[int, ...], size: int) -> ReadScales:
    """Return the scales of rows start … stop of a matrix, (rows, blocks): one for each square of `size` rows and
    columns.

    Raises ModelError if the squares don't cover the matrix.
    """
    check_floats(scale)
    if len(shape) != 2 or scale.shape != tuple(n // size for n in shape) or any(n % size for n in shape):
        problem = f"{scale.where} has shape {list(scale.shape)}"
        raise ModelError(f"{problem}; one number for each {size} x {size} of {list(shape)} was expected")

    def read(start: int, stop: int) -> Floats:
        first, last = start // size, -(-stop // size)
        values: Floats = scale.float32(first, last)
        return values[np.arange(start, stop) // size - first]

    return read


def tiled_bytes(scale: Tensor, outputs: tuple[int, ...], count: int, formats: tuple[str, ...]) -> ReadBytes:
    """Return the bytes of the scales of rows start … stop, (rows, count), from tiles of each matrix.

    outputs: all dimensions of the weight but the columns. Raises ModelError for another size or format.
    """
    *outer, rows = outputs
    high, wide = -(-rows // TILE_ROWS) * TILE_ROWS, -(-count // TILE_COLUMNS) * TILE_COLUMNS
    if scale.format.name not in formats or scale.size != math.prod(outer) * high * wide:
        problem = f"{scale.where} is {scale.format.name} {list(scale.shape)}"
        raise ModelError(f"{problem}; {' or '.join(formats)} {[*outer, high, wide]}, in tiles, was expected")

    def of_matrix(item: int, start: int, stop: int) -> Bytes:
        first, last = start // TILE_ROWS, -(-stop // TILE_ROWS)
        begin, each = item * high * wide, TILE_ROWS * wide
        raw = span(scale.raw, scale.row_bytes, begin + first * each, begin + last * each)
        tiles = raw.reshape(last - first, wide // TILE_COLUMNS, 32, TILE_ROWS // 32, TILE_COLUMNS)
        in_rows: Bytes = tiles.transpose(0, 3, 2, 1, 4).reshape(-1, wide)
        return in_rows[start - first * TILE_ROWS : stop - first * TILE_ROWS, :count]

    def read(start: int, stop: int) -> Bytes:
        pieces, at = [np.empty((0, count), np.uint8)], start
        while at < stop:
            item, row = divmod(at, rows)
            end = min(rows, row + stop - at)
            pieces.append(of_matrix(item, row, end))
            at += end - row
        return np.concatenate(pieces)

    return read


def small_floats(scale: Tensor) -> ReadScales:
    """Return scales of rows, (rows, groups), that are stored as floats of any size, or as the bytes of E4M3."""
    check_floats(scale, (*FLOATS, "F8_E4M3", "U8"))
    if scale.format.name != "U8":
        return scale.float32
    values = e4m3()
    return lambda start, stop: values[scale.raw(start, stop)]


def check_floats(scale: Tensor, formats: tuple[str, ...] = FLOATS) -> None:
    """Raise ModelError for a tensor in another format."""
    if scale.format.name not in formats:
        raise ModelError(f"{scale.where} is {scale.format.name}; {', '.join(formats)} was expected")


def e4m3() -> Floats:
    """Return the value of each byte as F8_E4M3, for scales that are stored as plain bytes."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, (codes & 7) / 8 + ((codes & 120) > 0)
    values = np.where(codes & 128, -1, 1) * np.ldexp(fraction, np.maximum(exponent, 1) - 7)
    return np.where(codes & 127 == 127, np.nan, values).astype(np.float32)


def powers() -> Floats:
    """Return the power of two of each byte, as comfy-kitchen reads E8M0: 0 is zero."""
    codes = np.arange(256)
    return np.where(codes == 255, np.nan, np.where(codes, np.ldexp(1.0, codes - 127), 0)).astype(np.float32)
