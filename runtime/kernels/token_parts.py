"""The operations between the products when a few tokens pass through a decoder, for `team.run`.

All arrays are float32 rows of a token each, as wide as their field gives. Attention is in `attention_operations`.
"""

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load
from quants.kernels.lanes import LANES, every

from . import activations
from .dots import SUPER
from .int16x32 import multiply_add, sum_of_lanes
from .state_operations import packed
from .thread_team import FIELDS, array_at, operation

f32 = np.float32
ZERO = f32(0)

STATE = 2  # address of int64: the number of tokens, the position of the first
X, X_WIDTH, OUT, OUT_WIDTH = 3, 4, 5, 6  # input and output: addresses, and the width of a token's row
SHORTS, NUMBERS_AT = 7, 8  # where the output goes as integers (see `dots`)
WIDTH = 9  # numbers of a row that count
WEIGHT, BIAS, EPS = 10, 11, 12  # of a norm; EPS is a float64
Y, Y_WIDTH = 19, 20  # the gate's other factor
SCALE = 26  # a float64


@inlined
def _fields(row):  # type: ignore[no-untyped-def]
    """Return an operation's fields, as integers and as float64, the number of tokens, and the position of the first."""
    op = array_at(row, FIELDS, np.int64)
    state = array_at(op[STATE], 2, np.int64)
    return op, array_at(row, FIELDS, np.float64), state[0], state[1]


@inlined
def _mean_square(x, start, width, mean):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(width):
        off = np.float64(x[start + i]) - mean
        total += off * off
    return total / width


@operation
def rms_norm(row, thread, threads):  # type: ignore[no-untyped-def]
    op, numbers, tokens, _ = _fields(row)
    width, size = op[WIDTH], op[OUT_WIDTH]
    weight = array_at(op[WEIGHT], width, np.float32)
    for t in range(thread, tokens, threads):
        x = array_at(op[X] + 4 * t * op[X_WIDTH], width, np.float32)
        out = array_at(op[OUT] + 4 * t * size, size, np.float32)
        a, b = every(ZERO), every(ZERO)
        whole = width // (2 * LANES) * (2 * LANES)
        for i in range(0, whole, 2 * LANES):
            a, b = multiply_add(load(x, i), load(x, i), a), multiply_add(load(x, i + LANES), load(x, i + LANES), b)
        total = np.float64(sum_of_lanes(a + b))
        for i in range(whole, width):
            total += np.float64(x[i] * x[i])
        scale = f32(1.0 / np.sqrt(total / width + numbers[EPS]))
        for i in range(width):
            out[i] = x[i] * scale * weight[i]
        if op[SHORTS]:
            packed(op, out, t, 0, size)


@operation
def layer_norm(row, thread, threads):  # type: ignore[no-untyped-def]
    op, numbers, tokens, _ = _fields(row)
    width, size = op[WIDTH], op[OUT_WIDTH]
    weight, bias = array_at(op[WEIGHT], width, np.float32), array_at(op[BIAS], width, np.float32)
    for t in range(thread, tokens, threads):
        x = array_at(op[X] + 4 * t * op[X_WIDTH], width, np.float32)
        out = array_at(op[OUT] + 4 * t * size, size, np.float32)
        mean = 0.0
        for i in range(width):
            mean += np.float64(x[i])
        mean /= width
        scale, middle = f32(1.0 / np.sqrt(_mean_square(x, 0, width, mean) + numbers[EPS])), f32(mean)
        for i in range(width):
            out[i] = (x[i] - middle) * scale * weight[i] + bias[i]
        if op[SHORTS]:
            packed(op, out, t, 0, size)


@operation
def pack_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    op, _, tokens, _ = _fields(row)
    for t in range(thread, tokens, threads):
        packed(op, array_at(op[OUT] + 4 * t * op[OUT_WIDTH], op[OUT_WIDTH], np.float32), t, 0, op[OUT_WIDTH])


@operation
def add_scaled(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT += SCALE * X."""
    op, numbers, tokens, _ = _fields(row)
    scale = f32(numbers[SCALE])
    for t in range(thread, tokens, threads):
        x = array_at(op[X] + 4 * t * op[X_WIDTH], op[WIDTH], np.float32)
        out = array_at(op[OUT] + 4 * t * op[OUT_WIDTH], op[WIDTH], np.float32)
        for i in range(op[WIDTH]):
            out[i] += scale * x[i]


@inlined
def _activated(row, thread, threads, function):  # type: ignore[no-untyped-def]
    """Compute OUT = function(OUT), times Y if there is one, and as integers; shared by pieces of 256 columns."""
    op, _, tokens, _ = _fields(row)
    pieces = op[OUT_WIDTH] // SUPER
    first, last = SUPER * (pieces * thread // threads), SUPER * (pieces * (thread + 1) // threads)
    used = min(last, op[WIDTH])
    for t in range(tokens):
        out = array_at(op[OUT] + 4 * t * op[OUT_WIDTH], op[OUT_WIDTH], np.float32)
        if first < used:
            function(out[first:used])
        if op[Y]:
            y = array_at(op[Y] + 4 * t * op[Y_WIDTH], op[WIDTH], np.float32)
            for i in range(first, used):
                out[i] *= y[i]
        packed(op, out, t, first, last)


@operation
def silu(row, thread, threads):  # type: ignore[no-untyped-def]
    _activated(row, thread, threads, activations.each_silu)


@operation
def gelu(row, thread, threads):  # type: ignore[no-untyped-def]
    _activated(row, thread, threads, activations.each_gelu)


@operation
def gelu_tanh(row, thread, threads):  # type: ignore[no-untyped-def]
    _activated(row, thread, threads, activations.each_gelu_tanh)


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}
