"""Operations on the heads of queries, keys and values, for a few tokens: norms, rotation, factors, and the cache."""

import numpy as np

from quants.kernels.half import to_half
from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import LANES, absolute, every, lane, larger, largest_lane
from quants.kernels.rounding import half_away
from quants.kernels.small_blocks import Q8_BYTES, Q8_TOP, VALUES

from .context_state import ANGLES, POSITIONS, SIZE, SLOTS, TOKENS
from .dots import NUMBERS, SUPER, pack
from .int16x32 import multiply_add, sum_of_lanes
from .thread_team import FIELDS, array_at, operation

f32 = np.float32
ZERO, ONE = f32(0), f32(1)

F32, F16, Q8_0 = 0, 1, 2  # types of caches
CACHE_TYPES = {"f32": F32, "f16": F16, "q8_0": Q8_0}

# Of all operations on heads
STATE = 2  # address of what `context_state` describes
X, X_WIDTH, OUT, OUT_WIDTH = 3, 4, 5, 6  # addresses, and the width of a token's row
SHORTS, NUMBERS_AT = 7, 8  # where the output goes as integers (see `dots`); 0: nowhere
HEADS, HEAD_WIDTH, X_APART, OUT_APART = 9, 10, 11, 12  # from one head's numbers to the next one's

# Of `prepare_heads`
STEPS = 13  # four bits each, the first step lowest
WEIGHT, WEIGHT_APART, BIAS, EPS, PLAIN_EPS, LIMIT = 14, 15, 16, 17, 18, 19  # 0 apart: the same for all heads; float64s
COS, SIN, HALF, ROTATED_FROM = 20, 21, 22, 23  # tables (rows, HALF); the first column that rotates
FACTORS, SCALE = 24, 25  # float32 by position or 0; a float64
CACHE, CACHE_TYPE = 26, 27  # address of each slot's address of rows (positions, HEADS, HEAD_WIDTH), or 0
CLAMP, RMS, LAYER, HALVES, ADJACENT, MULTIPLY, PLAIN_RMS = range(1, 8)


@inlined
def _keep(op, state, t, h, x):  # type: ignore[no-untyped-def]
    """Store x as head h at the position of a token in its text's cache."""
    width = op[HEAD_WIDTH]
    slot, row = state[SLOTS + t], state[POSITIONS + t] * op[HEADS] + h
    address = array_at(op[CACHE] + 8 * slot, 1, np.int64)[0]
    whole = width // LANES * LANES
    if op[CACHE_TYPE] == F32:
        floats = array_at(address + 4 * row * width, width, np.float32)
        for i in range(width):
            floats[i] = x[i]
    elif op[CACHE_TYPE] == F16:
        halves = array_at(address + 2 * row * width, width, np.uint16)
        for i in range(0, whole, LANES):
            store(halves, i, to_half(load(x, i)))
        for i in range(whole, width):
            halves[i] = np.uint16(lane(to_half(every(x[i])), 0) & 0xFFFF)
    else:
        size = width // VALUES * Q8_BYTES
        _keep_blocks(array_at(address + row * size, size, np.int8), x, width)


@inlined
def _keep_blocks(cache, x, width):  # type: ignore[no-untyped-def]
    """Store the same bytes as `quants.formats.q8_0`; the scale of a block with NaN or infinity becomes NaN, which marks
    it.
    """
    for i in range(0, width, VALUES):
        a, b = load(x, i), load(x, i + LANES)
        peak = largest_lane(larger(absolute(a), absolute(b)))
        d = (peak + sum_of_lanes((a + b) * ZERO)) / Q8_TOP
        inverse = ZERO if d == ZERO else ONE / d
        to, scale = i // VALUES * Q8_BYTES, lane(to_half(every(d)), 0)
        cache[to], cache[to + 1] = np.int8(scale & 255), np.int8((scale >> 8) & 255)
        store(cache, to + 2, half_away(a * inverse))
        store(cache, to + 2 + LANES, half_away(b * inverse))


@inlined
def _sum(x, width):  # type: ignore[no-untyped-def]
    whole, total = width // LANES * LANES, every(ZERO)
    for i in range(0, whole, LANES):
        total = total + load(x, i)
    result = np.float64(sum_of_lanes(total))
    for i in range(whole, width):
        result += np.float64(x[i])
    return result


@inlined
def _sum_of_squares(x, width, middle):  # type: ignore[no-untyped-def]
    whole, a, b = width // (2 * LANES) * (2 * LANES), every(ZERO), every(ZERO)
    for i in range(0, whole, 2 * LANES):
        first, second = load(x, i) - middle, load(x, i + LANES) - middle
        a, b = multiply_add(first, first, a), multiply_add(second, second, b)
    result = np.float64(sum_of_lanes(a + b))
    for i in range(whole, width):
        off = np.float64(x[i] - middle)
        result += off * off
    return result


@inlined
def _normed(op, numbers, step, h, x):  # type: ignore[no-untyped-def]
    """Apply the norm of a head, with weights and biases if it has them."""
    width, apart = op[HEAD_WIDTH], h * op[WEIGHT_APART]
    middle = f32(_sum(x, width) / width) if step == LAYER else ZERO
    eps = numbers[PLAIN_EPS] if step == PLAIN_RMS else numbers[EPS]
    scale = f32(1.0 / np.sqrt(_sum_of_squares(x, width, middle) / width + eps))
    for i in range(width):
        x[i] = (x[i] - middle) * scale
    if step != PLAIN_RMS and op[WEIGHT]:
        weight = array_at(op[WEIGHT] + 4 * apart, width, np.float32)
        for i in range(width):
            x[i] *= weight[i]
    if step != PLAIN_RMS and op[BIAS]:
        bias = array_at(op[BIAS] + 4 * apart, width, np.float32)
        for i in range(width):
            x[i] += bias[i]


@inlined
def _rotated(op, angles, step, x):  # type: ignore[no-untyped-def]
    """Rotate pairs in place: neighbours, or numbers half the rotated width apart."""
    half, first = op[HALF], op[ROTATED_FROM]
    cos = array_at(op[COS] + 4 * half * angles, half, np.float32)
    sin = array_at(op[SIN] + 4 * half * angles, half, np.float32)
    if step == HALVES:
        for i in range(half):
            a, b = x[first + i], x[first + half + i]
            x[first + i] = a * cos[i] - b * sin[i]
            x[first + half + i] = b * cos[i] + a * sin[i]
    else:
        for i in range(half):
            a, b = x[first + 2 * i], x[first + 2 * i + 1]
            x[first + 2 * i] = a * cos[i] - b * sin[i]
            x[first + 2 * i + 1] = b * cos[i] + a * sin[i]


@inlined
def _step(op, numbers, state, step, t, h, x):  # type: ignore[no-untyped-def]
    if step == CLAMP:
        limit = f32(numbers[LIMIT])
        for i in range(x.size):
            x[i] = limit if x[i] > limit else (-limit if x[i] < -limit else x[i])  # NaN stays
    elif step in (HALVES, ADJACENT):
        _rotated(op, state[ANGLES + t], step, x)
    elif step == MULTIPLY:
        factor = f32(numbers[SCALE])
        if op[FACTORS]:
            factor *= array_at(op[FACTORS] + 4 * state[POSITIONS + t], 1, np.float32)[0]
        for i in range(x.size):
            x[i] *= factor
    else:
        _normed(op, numbers, step, h, x)


@operation
def prepare_heads(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT = X, head by head, through STEPS; write it to the cache if there is one, and as integers.

    Threads share tokens and heads in the same way whenever there are as many: operations on the same heads need no
    barrier.
    """
    op, numbers = array_at(row, FIELDS, np.int64), array_at(row, FIELDS, np.float64)
    state = array_at(op[STATE], SIZE, np.int64)
    heads, width = op[HEADS], op[HEAD_WIDTH]
    items = state[TOKENS] * heads
    for item in range(items * thread // threads, items * (thread + 1) // threads):
        t, h = item // heads, item % heads
        place = t * op[OUT_WIDTH] + h * op[OUT_APART]
        out = array_at(op[OUT] + 4 * place, width, np.float32)
        if op[X] != op[OUT]:
            x = array_at(op[X] + 4 * (t * op[X_WIDTH] + h * op[X_APART]), width, np.float32)
            for i in range(width):
                out[i] = x[i]
        steps = op[STEPS]
        while steps:
            _step(op, numbers, state, steps & 15, t, h, out)
            steps >>= 4
        if op[CACHE]:
            _keep(op, state, t, h, out)
        if op[SHORTS]:
            pack_columns(op, place, op[OUT_WIDTH])


@inlined
def pack_columns(op, place, columns):  # type: ignore[no-untyped-def]
    """Pack this many numbers of OUT from a place on as integers, both multiples of 256."""
    out = array_at(op[OUT] + 4 * place, columns, np.float32)
    shorts = array_at(op[SHORTS] + 2 * place, columns, np.int16)
    size = columns // SUPER * NUMBERS
    pack(out, 0, columns, shorts, array_at(op[NUMBERS_AT] + 4 * (place // SUPER * NUMBERS), size, np.float32), 0)
