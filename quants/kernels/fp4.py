"""The sixteen values of E2M1, a 4-bit float, as MXFP4 and NVFP4 use them: doubled, so that they are integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .jit import inlined
from .lane_memory import load, lookup, store
from .lanes import LANES, Lanes, absolute, every_int, to_float, where

DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
# Halfway between neighbours: above it the greater magnitude is nearer.
LIMITS = tuple(np.float32(v) for v in (0.5, 1.5, 2.5, 3.5, 5, 7, 10))


@inlined
def nearest_fp4(x: Lanes, d: np.float32) -> Lanes:
    """Codes of the nearest of d * DOUBLED, the smaller magnitude where two are as near; never -0. Needs d > 0.

    d has at most four significant bits, so that limits are exact, and so are the differences they stand for.
    """
    size = absolute(x)
    code = where(size > LIMITS[0] * d, every_int(1), 0)
    for k in range(1, 7):
        code = where(size > LIMITS[k] * d, every_int(k + 1), code)
    return where((x < np.float32(0)) & (code > 0), code + 8, code)


@inlined
def expand_fp4(
    raw: NDArray[np.uint8], at: int, d: np.float32, doubled: NDArray[np.int8], values: NDArray[np.float32], to: int
) -> None:
    """Sixteen bytes of raw to values[to …]: low halves first, then high halves, times d."""
    codes = load(raw, at)
    store(values, to, to_float(lookup(doubled, 0, codes & 15)) * d)
    store(values, to + LANES, to_float(lookup(doubled, 0, codes >> 4)) * d)
