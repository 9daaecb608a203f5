"""Roundings to the nearest integer that formats differ in. `round_even` of lanes is the third."""

import numpy as np

from .jit import inlined
from .lanes import Lanes, float_bits, to_int, with_sign

BELOW_HALF = np.float32(0.49999997)  # the largest float32 below a half
MAGIC = np.float32(12582912)  # 1.5 * 2**23: floats around it are 1 apart


@inlined
def half_away(x: Lanes) -> Lanes:
    """Return f32x16 → i32x16, ties away from zero (C's roundf). Adding a whole half would take 0.49999997 to 1."""
    return to_int(x + with_sign(BELOW_HALF, x))


@inlined
def nearest_int(x: Lanes) -> Lanes:
    """Return f32x16 → i32x16, ties to even; for |x| >= 2**22 it wraps as llama.cpp does, never undefined."""
    return (float_bits(x + MAGIC) & 0x7FFFFF) - 0x400000
