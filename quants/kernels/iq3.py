"""IQ3_XXS and IQ3_S: every 4 values are a point of a grid, with signs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats.iq3_s import BLOCK as S
from ..formats.iq3_xxs import BLOCK as XXS
from .blocks import Bytes, Floats, field_offsets, load_half, scalar_word
from .grid_search import (
    REFIT_IF_OFF_GRID,
    REFIT_OFF_GRID_CELLS,
    SUPER,
    Result,
    grid_codec,
    packed_nibbles,
    packed_with_scale,
    point_search,
)
from .grids import EVEN_SIGNS, four_points, signed
from .jit import kernel
from .lane_memory import store
from .lanes import LANES, to_float

XXS_BYTES, S_BYTES = XXS.itemsize, S.itemsize
_, XXS_QS, XXS_WORDS = field_offsets(XXS)
_, QS, QH, SIGNS, SCALES = field_offsets(S)
SMALLEST = 1e-45  # above 0


def _fields(name: str, result: Result) -> dict[str, NDArray[Any]]:
    d, levels, alive, indexes, signs = result
    if name == "IQ3_XXS":
        return {"d": d.view("<f2"), "qs": indexes & 255, "scales_and_signs": packed_with_scale(signs, levels)}
    return {
        "d": d.view("<f2"),
        "qs": _close_gaps(indexes & 255, alive),
        "scales": packed_nibbles(levels),
        "signs": _close_gaps(signs, alive),
        "qh": np.packbits(indexes >> 8 != 0, axis=1, bitorder="little"),
    }


def _close_gaps(values: NDArray[Any], alive: Bytes) -> NDArray[Any]:
    """Move the fields of later groups into the gap of all-zero ones, as llama.cpp does."""
    if alive.all():
        return values
    order = np.argsort(alive == 0, axis=1, kind="stable")[..., None]
    return np.take_along_axis(values.reshape(*alive.shape, -1), order, axis=1).reshape(values.shape)


@kernel
def _decode_iq3_xxs(raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(raw.size // XXS_BYTES):
        whole = load_half(raw, XXS_BYTES * b)
        for g in range(8):
            word = scalar_word(raw, XXS_BYTES * b + XXS_WORDS + 4 * g)
            d = whole * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.5)
            for k in range(2):
                at = XXS_BYTES * b + XXS_QS + 8 * g + 4 * k
                points = to_float(four_points(grid, raw[at], raw[at + 1], raw[at + 2], raw[at + 3])) * d
                bits = EVEN_SIGNS[word >> (14 * k) & 127] | np.int64(EVEN_SIGNS[word >> (14 * k + 7) & 127]) << 8
                store(values, SUPER * b + 32 * g + LANES * k, signed(points, bits))


@kernel
def _decode_iq3_s(raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(raw.size // S_BYTES):
        at, whole = S_BYTES * b, load_half(raw, S_BYTES * b)
        for k in range(SUPER // LANES):
            level = raw[at + SCALES + k // 4] >> (2 * (k & 2)) & 15
            d = whole * np.float32(1 + 2 * np.int32(level))
            qs, ninth = at + QS + 4 * k, np.int64(raw[at + QH + k // 2]) << 8 >> (4 * (k & 1))
            points = four_points(
                grid,
                raw[qs] | ninth & 256,
                raw[qs + 1] | ninth >> 1 & 256,
                raw[qs + 2] | ninth >> 2 & 256,
                raw[qs + 3] | ninth >> 3 & 256,
            )
            bits = raw[at + SIGNS + 2 * k] | np.int64(raw[at + SIGNS + 2 * k + 1]) << 8
            store(values, SUPER * b + LANES * k, signed(to_float(points) * d, bits))


# The weight of an error: x * x, or importance * sqrt(2 * mean of the squares + x * x).
SEARCHES = {
    "IQ3_XXS": point_search("IQ3_XXS", 4, 32, True, False, REFIT_OFF_GRID_CELLS, 1e-8, 2, 0, 1.0125, 2, 15, 15, 0.2),
    "IQ3_S": point_search("IQ3_S", 4, 32, False, False, REFIT_IF_OFF_GRID, SMALLEST, 2, 0, 1.033, 3, 15, 9, 0.2),
}
KERNELS, encode, decode = grid_codec(SEARCHES, {"IQ3_XXS": _decode_iq3_xxs, "IQ3_S": _decode_iq3_s}, _fields)
