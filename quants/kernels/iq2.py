"""IQ2_XXS, IQ2_XS and IQ2_S: every 8 values are a point of a grid of 8, 25, 43, with signs.

XXS, XS: the number of negative signs of every 8 is even.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats.iq2_s import BLOCK as S
from ..formats.iq2_xs import BLOCK as XS
from ..formats.iq2_xxs import BLOCK as XXS
from .blocks import Bytes, Floats, field_offsets, load_half, scalar_word
from .grid_search import (
    REFIT_ALWAYS,
    REFIT_OFF_GRID_CELLS,
    SUPER,
    Result,
    grid_codec,
    packed_nibbles,
    packed_with_scale,
    point_search,
)
from .grids import EVEN_SIGNS, signed, two_points
from .jit import kernel
from .lane_memory import store
from .lanes import LANES, to_float

XXS_BYTES, XS_BYTES, S_BYTES = XXS.itemsize, XS.itemsize, S.itemsize
_, XXS_QS = field_offsets(XXS)
_, XS_QS, XS_SCALES = field_offsets(XS)
_, QS, SIGNS, QH, SCALES = field_offsets(S)


def _fields(name: str, result: Result) -> dict[str, NDArray[Any]]:
    d, levels, _, indexes, signs = result
    if name == "IQ2_XXS":
        words = indexes.astype(np.uint8).view("<u4"), packed_with_scale(signs, levels)
        return {"d": d.view("<f2"), "qs": np.stack(words, axis=2).view(XXS["qs"].base)[..., 0]}
    blocks = {"d": d.view("<f2"), "scales": packed_nibbles(levels)}
    if name == "IQ2_XS":
        return blocks | {"qs": indexes | (signs & 127).astype(np.uint16) << 9}
    high = indexes >> 8
    high = high[:, ::4] | high[:, 1::4] << 2 | high[:, 2::4] << 4 | high[:, 3::4] << 6
    return blocks | {"qs": indexes & 255, "signs": signs, "qh": high}


@kernel
def _decode_iq2_xxs(raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(raw.size // XXS_BYTES):
        whole = load_half(raw, XXS_BYTES * b)
        for g in range(8):
            at = XXS_BYTES * b + XXS_QS + 8 * g
            rest = scalar_word(raw, at + 4)
            d = whole * (np.float32(0.5) + np.float32(rest >> 28)) * np.float32(0.25)
            for k in range(2):
                points = to_float(two_points(grid, raw[at + 2 * k], raw[at + 2 * k + 1])) * d
                bits = EVEN_SIGNS[rest >> (14 * k) & 127] | np.int64(EVEN_SIGNS[rest >> (14 * k + 7) & 127]) << 8
                store(values, SUPER * b + 32 * g + LANES * k, signed(points, bits))


@kernel
def _decode_iq2_xs(raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(raw.size // XS_BYTES):
        whole = load_half(raw, XS_BYTES * b)
        for g in range(16):
            word = scalar_word(raw, XS_BYTES * b + XS_QS + 4 * g)
            low, high = word & 0xFFFF, word >> 16
            level = raw[XS_BYTES * b + XS_SCALES + g // 2] >> (4 * (g & 1)) & 15
            d = whole * (np.float32(0.5) + np.float32(level)) * np.float32(0.25)
            points = to_float(two_points(grid, low & 511, high & 511)) * d
            bits = EVEN_SIGNS[low >> 9] | np.int64(EVEN_SIGNS[high >> 9]) << 8
            store(values, SUPER * b + 16 * g, signed(points, bits))


@kernel
def _decode_iq2_s(raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(raw.size // S_BYTES):
        at, whole = S_BYTES * b, load_half(raw, S_BYTES * b)
        for g in range(16):
            k, ninth = 2 * g, np.int64(raw[at + QH + g // 2]) >> (4 * (g & 1))
            low, high = raw[at + QS + k] | (ninth & 3) << 8, raw[at + QS + k + 1] | (ninth & 12) << 6
            level = raw[at + SCALES + g // 2] >> (4 * (g & 1)) & 15
            d = whole * (np.float32(0.5) + np.float32(level)) * np.float32(0.25)
            bits = raw[at + SIGNS + k] | np.int64(raw[at + SIGNS + k + 1]) << 8
            store(values, SUPER * b + 16 * g, signed(to_float(two_points(grid, low, high)) * d, bits))


# The weight of an error: importance * sqrt(mean of the squares + x * x). IQ2_S: importance * sqrt(2 * mean + x * x), or
# mean / 2 + x * x.
SEARCHES = {
    "IQ2_XXS": point_search("IQ2_XXS", 8, 32, True, True, REFIT_ALWAYS, 1e-15, 1, 0, 1, 2, 5, 6, 0.1),
    "IQ2_XS": point_search("IQ2_XS", 8, 16, True, False, REFIT_OFF_GRID_CELLS, 1e-15, 1, 0, 1, 2, 5, 9, 0.1),
    "IQ2_S": point_search("IQ2_S", 8, 16, False, False, REFIT_OFF_GRID_CELLS, 1e-8, 2, 0.5, 0.9875, 1, 5, 9, 0.1),
}
DECODERS = {"IQ2_XXS": _decode_iq2_xxs, "IQ2_XS": _decode_iq2_xs, "IQ2_S": _decode_iq2_s}
KERNELS, encode, decode = grid_codec(SEARCHES, DECODERS, _fields)
