"""IQ2_XXS, IQ2_XS and IQ2_S: every 8 values are a point of a grid of 8, 25, 43, with signs.

XXS, XS: the number of negative signs of every 8 is even.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq2_s import BLOCK as S
from ..formats.iq2_xs import BLOCK as XS
from .blocks import Bytes, Floats, field_offsets, flat, value_rows
from .grid_search import (
    REFIT_ALWAYS,
    REFIT_OFF_GRID_CELLS,
    SUPER,
    Search,
    packed_nibbles,
    packed_with_scale,
    search_kernel,
    search_rows,
)
from .grids import EVEN_SIGNS, grid_values, signed, two_points
from .jit import Kernels, kernel
from .lane_memory import store
from .lanes import LANES, to_float

XS_BYTES, S_BYTES = XS.itemsize, S.itemsize
_, XS_QS, XS_SCALES = field_offsets(XS)
_, QS, SIGNS, QH, SCALES = field_offsets(S)


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    group = 32 if form.name == "IQ2_XXS" else 16
    result = search_rows(SEARCHES[form.name], form.name, 8, group, rows, importance)
    blocks = np.empty(len(result.d), form.block)
    blocks["d"] = result.d.view("<f2")
    indexes, signs = result.indexes, result.signs
    if form.name == "IQ2_XXS":
        words = indexes.astype(np.uint8).view("<u4"), packed_with_scale(signs, result.levels)
        blocks["qs"] = np.stack(words, axis=2).view(form.block["qs"].base)[..., 0]
    else:
        blocks["scales"] = packed_nibbles(result.levels)
        if form.name == "IQ2_XS":
            blocks["qs"] = indexes | (signs & 127).astype(np.uint16) << 9
        else:
            blocks["qs"], blocks["signs"] = indexes & 255, signs
            high = indexes >> 8
            blocks["qh"] = high[:, ::4] | high[:, 1::4] << 2 | high[:, 2::4] << 4 | high[:, 3::4] << 6
    return blocks.view(np.uint8).reshape(len(rows), -1)


def decode(form: Format, raw: Bytes) -> Floats:
    values, decoder = value_rows(form, raw), KERNELS[form.name].decode
    blocks = raw.reshape(-1).view(form.block)
    d, grid = blocks["d"].astype(np.float32), grid_values(form.name)
    if form.name == "IQ2_XXS":
        words = np.ascontiguousarray(raw.reshape(d.size, -1)[:, 2:]).view("<u4").reshape(-1)
        decoder(d, words, grid, EVEN_SIGNS, values.reshape(-1))
    elif form.name == "IQ2_XS":
        decoder(d, flat(raw), grid, EVEN_SIGNS, values.reshape(-1))
    else:
        decoder(d, flat(raw), grid, values.reshape(-1))
    return values


@kernel
def _decode_iq2_xxs(
    scales: Floats, words: NDArray[np.uint32], grid: NDArray[np.int8], signs: Bytes, values: Floats
) -> None:
    for b in range(scales.size):
        for g in range(8):
            indexes, rest = np.int64(words[2 * (8 * b + g)]), np.int64(words[2 * (8 * b + g) + 1])
            d = scales[b] * (np.float32(0.5) + np.float32(rest >> 28)) * np.float32(0.25)
            for k in range(2):
                points = to_float(two_points(grid, indexes >> (16 * k) & 255, indexes >> (16 * k + 8) & 255)) * d
                bits = signs[rest >> (14 * k) & 127] | np.int64(signs[rest >> (14 * k + 7) & 127]) << 8
                store(values, SUPER * b + 32 * g + LANES * k, signed(points, bits))

@kernel
def _decode_iq2_xs(
    scales: Floats, raw: Bytes, grid: NDArray[np.int8], signs: Bytes, values: Floats
) -> None:
    for b in range(scales.size):
        for g in range(16):
            at = XS_BYTES * b + XS_QS + 4 * g
            low = np.int64(raw[at]) | np.int64(raw[at + 1]) << 8
            high = np.int64(raw[at + 2]) | np.int64(raw[at + 3]) << 8
            level = raw[XS_BYTES * b + XS_SCALES + g // 2] >> (4 * (g & 1)) & 15
            d = scales[b] * (np.float32(0.5) + np.float32(level)) * np.float32(0.25)
            points = to_float(two_points(grid, low & 511, high & 511)) * d
            bits = signs[low >> 9] | np.int64(signs[high >> 9]) << 8
            store(values, SUPER * b + 16 * g, signed(points, bits))

@kernel
def _decode_iq2_s(scales: Floats, raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(scales.size):
        at = S_BYTES * b
        for g in range(16):
            k, ninth = 2 * g, np.int64(raw[at + QH + g // 2]) >> (4 * (g & 1))
            low, high = raw[at + QS + k] | (ninth & 3) << 8, raw[at + QS + k + 1] | (ninth & 12) << 6
            level = raw[at + SCALES + g // 2] >> (4 * (g & 1)) & 15
            d = scales[b] * (np.float32(0.5) + np.float32(level)) * np.float32(0.25)
            bits = raw[at + SIGNS + k] | np.int64(raw[at + SIGNS + k + 1]) << 8
            store(values, SUPER * b + 16 * g, signed(to_float(two_points(grid, low, high)) * d, bits))

# The weight of an error: importance * sqrt(mean of the squares + x * x). IQ2_S: importance * sqrt(2 * mean + x * x), or
# mean / 2 + x * x.
SEARCHES = {
    "IQ2_XXS": Search(search_kernel(8, 32, True, True, REFIT_ALWAYS, 1e-15, 1, 0, 1), 2, 5, 6, 0.1),
    "IQ2_XS": Search(search_kernel(8, 16, True, False, REFIT_OFF_GRID_CELLS, 1e-15, 1, 0, 1), 2, 5, 9, 0.1),
    "IQ2_S": Search(search_kernel(8, 16, False, False, REFIT_OFF_GRID_CELLS, 1e-8, 2, 0.5, 0.9875), 1, 5, 9, 0.1),
}
KERNELS = {
    "IQ2_XXS": Kernels(SEARCHES["IQ2_XXS"].kernel, SEARCHES["IQ2_XXS"].kernel, _decode_iq2_xxs),
    "IQ2_XS": Kernels(SEARCHES["IQ2_XS"].kernel, SEARCHES["IQ2_XS"].kernel, _decode_iq2_xs),
    "IQ2_S": Kernels(SEARCHES["IQ2_S"].kernel, SEARCHES["IQ2_S"].kernel, _decode_iq2_s),
}
