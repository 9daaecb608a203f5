"""IQ3_XXS and IQ3_S: every 4 values are a point of a grid, with signs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq3_s import BLOCK as S
from ..formats.iq3_xxs import BLOCK as XXS
from .blocks import Bytes, Floats, field_offsets, flat, value_rows
from .grid_search import (
    REFIT_IF_OFF_GRID,
    REFIT_OFF_GRID_CELLS,
    SUPER,
    Search,
    packed_nibbles,
    packed_with_scale,
    search_kernel,
    search_rows,
)
from .grids import EVEN_SIGNS, four_points, grid_values, signed
from .jit import Kernels, kernel
from .lane_memory import store
from .lanes import LANES, to_float

XXS_BYTES, S_BYTES = XXS.itemsize, S.itemsize
_, XXS_QS, _ = field_offsets(XXS)
_, QS, QH, SIGNS, SCALES = field_offsets(S)
LEAST = 1e-45  # number above 0


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    result = search_rows(SEARCHES[form.name], form.name, 4, 32, rows, importance)
    blocks = np.empty(len(result.d), form.block)
    blocks["d"], blocks["qs"] = result.d.view("<f2"), result.indexes & 255
    if form.name == "IQ3_XXS":
        blocks["scales_and_signs"] = packed_with_scale(result.signs, result.levels)
    else:
        blocks["signs"], blocks["scales"] = result.signs, packed_nibbles(result.levels)
        blocks["qh"] = np.packbits(result.indexes >> 8 != 0, axis=1, bitorder="little")
        if not result.alive.all():
            _close_gaps(blocks, result.alive)
    return blocks.view(np.uint8).reshape(len(rows), -1)


def _close_gaps(blocks: NDArray[np.void], alive: Bytes) -> None:
    """Move indexes and signs of later groups to where those of all-zero ones are, as llama.cpp does."""
    order = np.argsort(alive == 0, axis=1, kind="stable")[..., None]
    for name in ("qs", "signs"):
        groups = blocks[name].reshape(len(blocks), 8, -1)
        blocks[name] = np.take_along_axis(groups, order, axis=1).reshape(len(blocks), -1)


def decode(form: Format, raw: Bytes) -> Floats:
    values = value_rows(form, raw)
    blocks = raw.reshape(-1).view(form.block)
    d, grid = blocks["d"].astype(np.float32), grid_values(form.name)
    if form.name == "IQ3_XXS":
        words = np.ascontiguousarray(blocks["scales_and_signs"]).reshape(-1)
        _decode_iq3_xxs(d, words, flat(raw), grid, EVEN_SIGNS, values.reshape(-1))
    else:
        _decode_iq3_s(d, flat(raw), grid, values.reshape(-1))
    return values


@kernel
def _decode_iq3_xxs(
    scales: Floats, scales_and_signs: NDArray[np.uint32], raw: Bytes, grid: NDArray[np.int8],
    signs: Bytes, values: Floats,
) -> None:  # fmt: skip
    for b in range(scales.size):
        for g in range(8):
            word = np.int64(scales_and_signs[8 * b + g])
            d = scales[b] * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.5)
            for k in range(2):
                at = XXS_BYTES * b + XXS_QS + 8 * g + 4 * k
                points = to_float(four_points(grid, raw[at], raw[at + 1], raw[at + 2], raw[at + 3])) * d
                bits = signs[word >> (14 * k) & 127] | np.int64(signs[word >> (14 * k + 7) & 127]) << 8
                store(values, SUPER * b + 32 * g + LANES * k, signed(points, bits))

@kernel
def _decode_iq3_s(scales: Floats, raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(scales.size):
        at = S_BYTES * b
        for k in range(SUPER // LANES):
            level = raw[at + SCALES + k // 4] >> (2 * (k & 2)) & 15
            d = scales[b] * np.float32(1 + 2 * np.int32(level))
            qs, ninth = at + QS + 4 * k, np.int64(raw[at + QH + k // 2]) << 8 >> (4 * (k & 1))
            points = four_points(
                grid, raw[qs] | ninth & 256, raw[qs + 1] | ninth >> 1 & 256, raw[qs + 2] | ninth >> 2 & 256,
                raw[qs + 3] | ninth >> 3 & 256)
            bits = raw[at + SIGNS + 2 * k] | np.int64(raw[at + SIGNS + 2 * k + 1]) << 8
            store(values, SUPER * b + LANES * k, signed(to_float(points) * d, bits))


# The weight of an error: x * x, or importance * sqrt(2 * mean of the squares + x * x).
SEARCHES = {
    "IQ3_XXS": Search(search_kernel(4, 32, True, False, REFIT_OFF_GRID_CELLS, 1e-8, 2, 0, 1.0125), 2, 15, 15, 0.2),
    "IQ3_S": Search(search_kernel(4, 32, False, False, REFIT_IF_OFF_GRID, LEAST, 2, 0, 1.033), 3, 15, 9, 0.2),
}
KERNELS = {
    "IQ3_XXS": Kernels(SEARCHES["IQ3_XXS"].kernel, SEARCHES["IQ3_XXS"].kernel, _decode_iq3_xxs),
    "IQ3_S": Kernels(SEARCHES["IQ3_S"].kernel, SEARCHES["IQ3_S"].kernel, _decode_iq3_s),
}
