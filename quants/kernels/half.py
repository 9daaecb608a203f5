"""float16 and bfloat16 by integer arithmetic on lanes: the same on processors with and without instructions for it.

Both narrow to the nearest value, ties to even, and keep subnormals, as ggml does. Bits are in the low half of i32x16.
"""

import numpy as np

from .jit import inlined
from .lanes import Lanes, bits_float, float_bits, shift_right, smaller, where

MIN_NORMAL, MIN_NORMAL_BITS = np.float32(2.0**-14), 0x38800000  # the smallest normal float16, as float32
# 0.5's last place is 2**-24, the step between subnormal float16: adding it rounds to that step
HALF, HALF_BITS = np.float32(0.5), 0x3F000000


@inlined
def to_half(x: Lanes) -> Lanes:
    """Return f32x16 → float16 bits. Too large: infinity; NaN: 0x7E00 with its sign."""
    bits = float_bits(x)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0xFFF + ((size >> 13) & 1)) >> 13) - (112 << 10)
    subnormal = float_bits(bits_float(size) + HALF) - HALF_BITS
    half = where(size < MIN_NORMAL_BITS, subnormal, smaller(normal, 0x7C00))
    return where(size > 0x7F800000, 0x7E00, half) | (shift_right(bits, 16) & 0x8000)


@inlined
def from_half(bits: Lanes) -> Lanes:
    """Return float16 bits → f32x16."""
    size = (bits & 0x7FFF) << 13
    normal = bits_float(size + where(size < 0x0F800000, 112 << 23, 224 << 23))
    subnormal = bits_float(size + MIN_NORMAL_BITS) - MIN_NORMAL
    value = where(size < 0x00800000, subnormal, normal)
    return bits_float(float_bits(value) | ((bits & 0x8000) << 16))


@inlined
def to_bfloat(x: Lanes) -> Lanes:
    """Return f32x16 → bfloat16 bits. NaN stays NaN, made quiet."""
    bits = float_bits(x)
    rounded = shift_right(bits + 0x7FFF + (shift_right(bits, 16) & 1), 16)
    return where((bits & 0x7FFFFFFF) > 0x7F800000, shift_right(bits, 16) | 64, rounded)


@inlined
def from_bfloat(bits: Lanes) -> Lanes:
    """Return bfloat16 bits → f32x16."""
    return bits_float(bits << 16)
