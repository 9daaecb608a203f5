"""Activation functions over flat float32 arrays, in place in the first argument."""

from functools import partial

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.numba_internals import njit

from .exponential import HALF, ONE, erfc, sigmoid, softplus, tanh

f32 = np.float32
ROOT_HALF = f32(0.7071067811865476)
TWO_ROOT_2_BY_PI = f32(1.5957691216057308)  # 2 * sqrt(2 / pi)
CUBIC = f32(0.044715)
QUICK = f32(1.702)


@partial(inlined, fastmath={"contract"})
def gelu_of(x):  # type: ignore[no-untyped-def]
    return HALF * x * erfc(-x * ROOT_HALF)


@partial(inlined, fastmath={"contract"})
def gelu_tanh_of(x):  # type: ignore[no-untyped-def]
    """Return x * (0.5 * (1 + tanh(u))), computed as a sigmoid of 2 * u."""
    return x * sigmoid(TWO_ROOT_2_BY_PI * (x + CUBIC * x * x * x))


@njit(cache=True, nogil=True)
def each_sigmoid(x):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        x[i] = sigmoid(x[i])


@njit(cache=True, nogil=True)
def each_silu(x):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        x[i] = x[i] * sigmoid(x[i])


@njit(cache=True, nogil=True)
def each_gelu(x):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        x[i] = gelu_of(x[i])


@njit(cache=True, nogil=True)
def each_gelu_tanh(x):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        x[i] = gelu_tanh_of(x[i])


@njit(cache=True, nogil=True)
def each_gelu_quick(x):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        x[i] = x[i] * sigmoid(QUICK * x[i])


@njit(cache=True, nogil=True)
def each_softplus(x):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        x[i] = softplus(x[i])


@njit(cache=True, nogil=True, error_model="numpy")
def each_softcap(x, cap):  # type: ignore[no-untyped-def]
    inverse = ONE / cap
    for i in range(x.size):
        x[i] = cap * tanh(x[i] * inverse)


@njit(cache=True, nogil=True)
def gated_swiglu_clamped(gate, up, limit):  # type: ignore[no-untyped-def]
    """Compute GPT-OSS's unit: g sigmoid(1.702 g) (u + 1) with g at most `limit` and u within ±limit."""
    for i in range(gate.size):
        g = min(gate[i], limit)
        gate[i] = g * sigmoid(QUICK * g) * (min(max(up[i], -limit), limit) + ONE)
