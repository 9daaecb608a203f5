"""Assemble an image's tiles to one row of embeddings, for encoders with learned ends of rows or images.

Sources: transformers `models/{granite4_vision,unlimited_ocr,deepseek_ocr2}/modeling_*.py`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Floats
from .encoder import Parts
from .layers import fitting
from .places import Embedded
from .preprocessing import Tiles


def assembled(encoder: Parts, tiles: Tiles, each: Sequence[Embedded]) -> tuple[Embedded, ...]:
    """Return the embeddings of an image from those of its tiles. Raises ModelError."""
    if encoder.projector not in ASSEMBLED:
        return tuple(each)
    with fitting():
        return (Embedded(ASSEMBLED[encoder.projector](encoder, tiles, [tile.embeddings for tile in each])),)


def in_rows(each: Sequence[Floats], rows: int, columns: int) -> Floats:
    """Return tiles of squares of tokens, by row and column, as tokens by row and column: (rows, columns, width)."""
    side = round(len(each[0]) ** 0.5)
    grid = np.stack(each).reshape(rows, columns, side, side, -1).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(grid).reshape(rows * side, columns * side, -1)


def with_ends(grid: Floats, end: Floats) -> Floats:
    """Return tokens (rows, columns, width) one after the other, with an end after each row: (rows * (columns + 1),
    width).
    """
    ends = np.broadcast_to(end, (len(grid), 1, grid.shape[2]))
    return np.concatenate([grid, ends], axis=1).reshape(-1, grid.shape[2])


def _granite4(encoder: Parts, tiles: Tiles, each: Sequence[Floats]) -> Floats:
    """Return the whole image, then its tiles without their padding."""
    *parts, whole = each
    grid = in_rows(parts, tiles.rows, tiles.columns)
    height, width = tiles.size
    rows, columns = grid.shape[:2]
    if width / height > columns / rows:
        border = (rows - int(round(height * (columns / width), 7))) // 2
        grid = grid[border : rows - border]
    else:
        border = (columns - int(round(width * (rows / height), 7))) // 2
        grid = grid[:, border : columns - border]
    newline = encoder.weights.values("v.image_newline").reshape(-1)
    return np.concatenate([whole, with_ends(grid, np.tile(newline, grid.shape[2] // len(newline)))])


def _deepseek_ocr(encoder: Parts, tiles: Tiles, each: Sequence[Floats]) -> Floats:
    *parts, whole = each
    newline = encoder.weights.values("v.image_newline").reshape(-1)
    embeddings = [with_ends(in_rows(parts, tiles.rows, tiles.columns), newline)] if parts else []
    return np.concatenate([*embeddings, with_ends(in_rows([whole], 1, 1), newline), _separator(encoder)])


def _deepseek_ocr2(encoder: Parts, tiles: Tiles, each: Sequence[Floats]) -> Floats:
    return np.concatenate([*each, _separator(encoder)])


def _separator(encoder: Parts) -> Floats:
    return encoder.weights.values("v.view_seperator").reshape(1, -1)


ASSEMBLED: dict[str, Callable[[Parts, Tiles, Sequence[Floats]], Floats]] = {
    "granite4_vision": _granite4,
    "deepseekocr": _deepseek_ocr,
    "deepseekocr2": _deepseek_ocr2,
}
