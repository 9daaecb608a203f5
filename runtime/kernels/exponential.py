"""exp of a float32 that the compiler can turn into vector code, and what is built on it.

A call of the C library's `expf` inside a loop keeps LLVM from vectorising it. Here exp(x) = 2^n * e^r with |r| at most
half of ln 2, and e^r is its series up to r^7; what is left out is below float32's rounding. Relative error: 1.2e-7.
"""

from functools import partial
from typing import Any

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load
from quants.kernels.lanes import LANES, bits_float, every, float_bits, larger, largest_lane, smaller
from quants.kernels.numba_internals import cgutils, intrinsic, ir, nt

from .int16x32 import multiply_add

f32 = np.float32
SHORT = 512
LOWEST, HIGHEST = f32(-87.3), f32(88)  # 1e-38 and 2e38: past them float32 has no normal number for the result
LOG2_E = f32(1.4426950408889634)
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.12194440e-4)  # their sum is ln 2; n * LN2_HIGH is exact
SERIES = tuple(f32(1 / factorial) for factorial in (5040, 720, 120, 24, 6, 2))  # of e^r from r^7 down to r^2
ZERO, HALF, ONE, TWO = f32(0), f32(0.5), f32(1), f32(2)
# 1.5 * 2²³: floats are one apart there, and the low half of their bits is the integer in two's complement
MAGIC = f32(12582912)
# Three fits of our own at Chebyshev points: log(1 + u) = u * P(u), 0 <= u <= 1, to 2e-7 of itself;
# tanh(x) = x + x * y * P(y), y = x^2 < 0.4, to 7e-10; P of `erfc` to 9e-8.
LOG1P = tuple(
    map(
        f32,
        (
            -0.00325637847272923,
            0.0199071609256446,
            -0.0570642007612201,
            0.106142646870625,
            -0.153118631022172,
            0.19678117256353,
            -0.249545588710824,
            0.333300040352213,
            -0.499999039927639,
            0.999999995384853,
        ),
    )
)
T_END = f32(0.4)
TANH = tuple(
    map(
        f32,
        (
            0.00227269654158138,
            -0.00832639310494334,
            0.0217636300206123,
            -0.0539586235770741,
            0.133333009620522,
            -0.33333333155939,
        ),
    )
)
ERFC = tuple(
    map(
        f32,
        (
            0.177385513978083,
            -0.853225088607982,
            1.55096740351891,
            -1.20387424271112,
            0.323745747866491,
            -0.203998648337523,
            0.100874128888727,
            0.37358732184142,
            1.00005045380594,
            -1.26551250783392,
        ),
    )
)


@intrinsic
def nearest(typing: Any, x: Any) -> Any:
    """Return the integer next to a float32, as a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function_type = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
        return builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.rint.f32"), args)

    return nt.float32(nt.float32), codegen


@partial(inlined, fastmath={"contract"})
def exp(x):  # type: ignore[no-untyped-def]
    """Return e^x of a float32; outside -87.3 … 88 the value at the end, so that sums and quotients need no special
    case.
    """
    x = LOWEST if x < LOWEST else x  # written so that NaN stays NaN
    x = HIGHEST if x > HIGHEST else x
    n = nearest(x * LOG2_E)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = SERIES[0]
    for c in SERIES[1:]:
        p = p * r + c
    p = p * (r * r) + r + ONE
    return p * np.int32((np.int32(n) + 127) << 23).view(f32)  # 2^n: n is an integer in -126 … 127


@inlined
def exp_of_lanes(x):  # type: ignore[no-untyped-def]
    """Return `exp` of f32x16 at most 88."""
    x = larger(every(LOWEST), x)  # NaN stays
    shifted = multiply_add(x, every(LOG2_E), every(MAGIC))
    n = shifted - MAGIC
    r = multiply_add(n, every(-LN2_HIGH), x)
    r = multiply_add(n, every(-LN2_LOW), r)
    p = every(SERIES[0])
    for c in SERIES[1:]:
        p = multiply_add(p, r, every(c))
    p = multiply_add(p, r * r, r) + ONE
    return p * bits_float((float_bits(shifted) << 23) + 0x3F800000)


@inlined
def sigmoid_of_lanes(x):  # type: ignore[no-untyped-def]
    """Return 1 / (1 + e^-x) of f32x16."""
    return ONE / (exp_of_lanes(smaller(every(HIGHEST), -x)) + ONE)  # NaN stays


@partial(inlined, fastmath={"contract"})
def softplus(x):  # type: ignore[no-untyped-def]
    """Return log(1 + e^x), as max(x, 0) + log(1 + u) with u = e^-|x|."""
    u = exp(-x if x > ZERO else x)
    p = LOG1P[0]
    for c in LOG1P[1:]:
        p = p * u + c
    return (x if x > ZERO else ZERO) + u * p


@partial(inlined, fastmath={"contract"})
def sigmoid(x):  # type: ignore[no-untyped-def]
    return ONE / (ONE + exp(-x))


@partial(inlined, fastmath={"contract"})
def tanh(x):  # type: ignore[no-untyped-def]
    far = ONE - TWO / (ONE + exp(x + x))
    y = x * x
    p = TANH[0]
    for c in TANH[1:]:
        p = p * y + c
    return x + x * (y * p) if y < T_END else far


@partial(inlined, fastmath={"contract"})
def erfc(x):  # type: ignore[no-untyped-def]
    """Return 1 - erf(x): t * e^(-x^2 + P(t)) with t = 1 / (1 + |x|/2), and the mirror image for negative x."""
    z = -x if x < ZERO else x
    t = ONE / (ONE + HALF * z)
    p = ERFC[0]
    for c in ERFC[1:]:
        p = p * t + c
    tail = t * exp(p - z * z)
    return TWO - tail if x < ZERO else tail


@inlined
def largest(row):  # type: ignore[no-untyped-def]
    """Return the largest of some float32 (1-D, C order, not empty); whether a NaN counts is undefined."""
    top, whole = row[0], row.size - row.size % (2 * LANES)
    if whole:
        a, b = load(row, 0), load(row, LANES)
        for i in range(2 * LANES, whole, 2 * LANES):
            a, b = larger(load(row, i), a), larger(load(row, i + LANES), b)
        top = largest_lane(larger(a, b))
    for i in range(whole, row.size):
        top = row[i] if row[i] > top else top
    return top


@partial(inlined, fastmath={"reassoc"})
def short_sum_of_exp(row, top):  # type: ignore[no-untyped-def]
    total = ZERO
    for i in range(row.size):
        total += exp(row[i] - top)
    return total


@inlined
def sum_of_exp(row, top):  # type: ignore[no-untyped-def]
    """Return the sum of e^(row - top): float32 over SHORT values, of which a vector keeps many sums, then float64."""
    total = 0.0
    for i in range(0, row.size, SHORT):
        total += np.float64(short_sum_of_exp(row[i : i + SHORT], top))
    return total
