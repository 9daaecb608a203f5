"""What stands between the products when a few tokens pass through a decoder: operations for `team.run`.

All arrays are float32 rows of a token each, as wide as their field says. Work on heads is shared by groups of heads
with common keys, so that a thread goes from queries to what its heads give without waiting for others.
"""

import numpy as np

from quants.kernels.half import to_half
from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import LANES, absolute, every, lane, larger, largest_lane, to_float
from quants.kernels.rounding import half_away
from quants.kernels.small_blocks import Q8_BYTES, Q8_TOP, VALUES

from . import activations
from .dots import NUMBERS, SUPER, pack
from .exponential import largest
from .shorts import load_half, load_numbers, multiply_add, sum_of_lanes
from .softmax import exp_and_sum
from .team import FIELDS, array_at, operation

f32 = np.float32
ZERO, ONE = f32(0), f32(1)
TOGETHER = 64  # positions that all heads look at before the next ones, so that memory is read in its order

STATE = 2  # address of int64: how many tokens there are, the position of the first
X, X_WIDTH, OUT, OUT_WIDTH = 3, 4, 5, 6  # input and output: addresses, and the width of a token's row
SHORTS, NUMBERS_AT = 7, 8  # where the output goes as integers (see `dots`)
WIDTH = 9  # numbers of a row that count
WEIGHT, BIAS, EPS = 10, 11, 12  # of a norm; EPS is a float64
HEADS, HEAD_WIDTH, GROUPS = 13, 14, 15  # heads of a group; groups
COS, SIN, HALF = 16, 17, 18  # tables (positions, HALF)
Y, Y_WIDTH, Z, Z_WIDTH = 19, 20, 21, 22  # keys and values of the tokens, or what a gate multiplies
ALL_KEYS, ALL_VALUES, VALUE_WIDTH = 23, 24, 25  # of all positions: (positions, GROUPS, HEAD_WIDTH or VALUE_WIDTH)
SCALE, CAP, WINDOW = 26, 27, 28  # float64s; how far a token sees, 0 for everywhere
SCRATCH, ROOM = 29, 30  # float32 (heads, ROOM) for scores


@inlined
def _fields(row):  # type: ignore[no-untyped-def]
    """An operation's fields, as integers and as float64, how many tokens there are, and the position of the first."""
    op = array_at(row, FIELDS, np.int64)
    state = array_at(op[STATE], 2, np.int64)
    return op, array_at(row, FIELDS, np.float64), state[0], state[1]


@inlined
def _packed(op, out, t, first, last):  # type: ignore[no-untyped-def]
    """Columns first … last of token t's output as integers, both multiples of 256."""
    size = op[OUT_WIDTH]
    shorts = array_at(op[SHORTS] + 2 * t * size, size, np.int16)
    numbers = array_at(op[NUMBERS_AT] + 4 * (t * size // SUPER * NUMBERS), size // SUPER * NUMBERS, np.float32)
    pack(out, first, last - first, shorts, numbers, first // SUPER * NUMBERS)


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
            _packed(op, out, t, 0, size)


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
            _packed(op, out, t, 0, size)


@operation
def pack_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    op, _, tokens, _ = _fields(row)
    for t in range(thread, tokens, threads):
        _packed(op, array_at(op[OUT] + 4 * t * op[OUT_WIDTH], op[OUT_WIDTH], np.float32), t, 0, op[OUT_WIDTH])


@operation
def add_scaled(row, thread, threads):  # type: ignore[no-untyped-def]
    """OUT += SCALE * X"""
    op, numbers, tokens, _ = _fields(row)
    scale = f32(numbers[SCALE])
    for t in range(thread, tokens, threads):
        x = array_at(op[X] + 4 * t * op[X_WIDTH], op[WIDTH], np.float32)
        out = array_at(op[OUT] + 4 * t * op[OUT_WIDTH], op[WIDTH], np.float32)
        for i in range(op[WIDTH]):
            out[i] += scale * x[i]


@operation
def norm_heads(row, thread, threads):  # type: ignore[no-untyped-def]
    """RMS norm of each head in place."""
    op, numbers, tokens, _ = _fields(row)
    width = op[HEAD_WIDTH]
    weight = array_at(op[WEIGHT], width, np.float32)
    first, last = op[GROUPS] * thread // threads * op[HEADS], op[GROUPS] * (thread + 1) // threads * op[HEADS]
    for t in range(tokens):
        x = array_at(op[X] + 4 * t * op[X_WIDTH], op[X_WIDTH], np.float32)
        for h in range(first, last):
            scale = f32(1.0 / np.sqrt(_mean_square(x, h * width, width, 0.0) + numbers[EPS]))
            for i in range(width):
                x[h * width + i] = x[h * width + i] * scale * weight[i]


@inlined
def _rotate(row, thread, threads, apart, step):  # type: ignore[no-untyped-def]
    """Turn pairs in place: value step * i with the one `apart` (0: half a head) behind it."""
    op, _, tokens, position = _fields(row)
    half, width = op[HALF], op[HEAD_WIDTH]
    behind = apart if apart else half
    first, last = op[GROUPS] * thread // threads * op[HEADS], op[GROUPS] * (thread + 1) // threads * op[HEADS]
    for t in range(tokens):
        x = array_at(op[X] + 4 * t * op[X_WIDTH], op[X_WIDTH], np.float32)
        cos = array_at(op[COS] + 4 * half * (position + t), half, np.float32)
        sin = array_at(op[SIN] + 4 * half * (position + t), half, np.float32)
        for h in range(first, last):
            for i in range(half):
                at = h * width + step * i
                a, b = x[at], x[at + behind]
                x[at] = a * cos[i] - b * sin[i]
                x[at + behind] = b * cos[i] + a * sin[i]


@operation
def rotate_halves(row, thread, threads):  # type: ignore[no-untyped-def]
    _rotate(row, thread, threads, 0, 1)


@operation
def rotate_adjacent(row, thread, threads):  # type: ignore[no-untyped-def]
    _rotate(row, thread, threads, 1, 2)


@inlined
def _keep_floats(cache, head, x, at, width):  # type: ignore[no-untyped-def]
    """Let row `head` of a cache be x[at:at + width]."""
    for i in range(0, width, LANES):
        store(cache, head * width + i, load(x, at + i))


@inlined
def _keep_halves(cache, head, x, at, width):  # type: ignore[no-untyped-def]
    for i in range(0, width, LANES):
        store(cache, head * width + i, to_half(load(x, at + i)))


@inlined
def _score_numbers(q, at, cache, head, width):  # type: ignore[no-untyped-def]
    """q[at:at + width] times row `head` of a cache of float32 or float16."""
    total = every(ZERO)
    for i in range(0, width, LANES):
        total = multiply_add(load(q, at + i), load_numbers(cache, head * width + i), total)
    return sum_of_lanes(total)


@inlined
def _mix_numbers(weights, cache, head, apart, width, out, at):  # type: ignore[no-untyped-def]
    """Add to out[at:at + width] the sum of weights[j] times row head + apart * j of a cache."""
    for i in range(0, width, LANES):
        a, b = load(out, at + i), every(ZERO)
        for j in range(0, weights.size - 1, 2):
            place = (head + apart * j) * width + i
            a = multiply_add(load_numbers(cache, place), every(weights[j]), a)
            b = multiply_add(load_numbers(cache, place + apart * width), every(weights[j + 1]), b)
        if weights.size % 2:
            j = weights.size - 1
            a = multiply_add(load_numbers(cache, (head + apart * j) * width + i), every(weights[j]), a)
        store(out, at + i, a + b)


@inlined
def _keep_blocks(cache, head, x, at, width):  # type: ignore[no-untyped-def]
    """The same bytes as `quants.formats.q8_0`; the scale of a block with NaN or infinity is NaN, so that it shows."""
    for i in range(0, width, VALUES):
        a, b = load(x, at + i), load(x, at + i + LANES)
        peak = largest_lane(larger(absolute(a), absolute(b)))
        d = (peak + sum_of_lanes((a + b) * ZERO)) / Q8_TOP
        inverse = ZERO if d == ZERO else ONE / d
        to, scale = (head * (width // VALUES) + i // VALUES) * Q8_BYTES, lane(to_half(every(d)), 0)
        cache[to], cache[to + 1] = np.int8(scale & 255), np.int8((scale >> 8) & 255)
        store(cache, to + 2, half_away(a * inverse))
        store(cache, to + 2 + LANES, half_away(b * inverse))


@inlined
def _score_blocks(q, at, cache, head, width):  # type: ignore[no-untyped-def]
    total = every(ZERO)
    for i in range(0, width, VALUES):
        place = (head * (width // VALUES) + i // VALUES) * Q8_BYTES
        part = load(q, at + i) * to_float(load(cache, place + 2))
        part = multiply_add(load(q, at + i + LANES), to_float(load(cache, place + 2 + LANES)), part)
        total = multiply_add(part, every(load_half(cache, place)), total)
    return sum_of_lanes(total)


@inlined
def _mix_blocks(weights, cache, head, apart, width, out, at):  # type: ignore[no-untyped-def]
    for i in range(0, width, VALUES):
        a, b = load(out, at + i), load(out, at + i + LANES)
        for j in range(weights.size):
            place = ((head + apart * j) * (width // VALUES) + i // VALUES) * Q8_BYTES
            scale = every(load_half(cache, place) * weights[j])
            a = multiply_add(to_float(load(cache, place + 2)), scale, a)
            b = multiply_add(to_float(load(cache, place + 2 + LANES)), scale, b)
        store(out, at + i, a)
        store(out, at + i + LANES, b)


@inlined
def _attend(row, thread, threads, kind, keep, score, mix):  # type: ignore[no-untyped-def]
    """Keep the tokens' keys and values (Y, Z), and mix values by the scores of queries (X) and keys.

    Of a cache with elements of this kind, through functions that know how a head's row lies in it.
    """
    op, numbers, tokens, position = _fields(row)
    groups, width, value_width = op[GROUPS], op[HEAD_WIDTH], op[VALUE_WIDTH]
    end = position + tokens
    keys = array_at(op[ALL_KEYS], 2 * end * groups * width, kind)  # more than there is: bytes of scales count, too
    values = array_at(op[ALL_VALUES], 2 * end * groups * value_width, kind)
    scores = array_at(op[SCRATCH], groups * op[HEADS] * op[ROOM], np.float32)
    scale, cap = f32(numbers[SCALE]), f32(numbers[CAP])
    first, last = groups * thread // threads, groups * (thread + 1) // threads
    for t in range(tokens):
        at = position + t
        q = array_at(op[X] + 4 * t * op[X_WIDTH], op[X_WIDTH], np.float32)
        k = array_at(op[Y] + 4 * t * op[Y_WIDTH], groups * width, np.float32)
        v = array_at(op[Z] + 4 * t * op[Z_WIDTH], groups * value_width, np.float32)
        out = array_at(op[OUT] + 4 * t * op[OUT_WIDTH], op[OUT_WIDTH], np.float32)
        begin = max(0, at - op[WINDOW] + 1) if op[WINDOW] else 0
        for g in range(first, last):
            keep(keys, at * groups + g, k, g * width, width)
            keep(values, at * groups + g, v, g * value_width, value_width)
        for start in range(begin, at + 1, TOGETHER):
            for g in range(first, last):
                for h in range(g * op[HEADS], (g + 1) * op[HEADS]):
                    for j in range(start, min(start + TOGETHER, at + 1)):
                        found = score(q, h * width, keys, j * groups + g, width)
                        scores[h * op[ROOM] + j - begin] = found * scale
        for h in range(first * op[HEADS], last * op[HEADS]):
            seen = scores[h * op[ROOM] : h * op[ROOM] + at + 1 - begin]
            if cap > ZERO:
                activations.each_softcap(seen, cap)
            share = every(f32(1.0 / exp_and_sum(seen, largest(seen))))
            for i in range(0, seen.size // LANES * LANES, LANES):
                store(seen, i, load(seen, i) * share)
            for i in range(seen.size // LANES * LANES, seen.size):
                seen[i] *= lane(share, 0)
            for i in range(0, value_width, LANES):
                store(out, h * value_width + i, every(ZERO))
        for start in range(begin, at + 1, TOGETHER):
            for g in range(first, last):
                for h in range(g * op[HEADS], (g + 1) * op[HEADS]):
                    base = h * op[ROOM] - begin
                    weights = scores[base + start : base + min(start + TOGETHER, at + 1)]
                    mix(weights, values, start * groups + g, groups, value_width, out, h * value_width)


@operation
def attend(row, thread, threads):  # type: ignore[no-untyped-def]
    _attend(row, thread, threads, np.float32, _keep_floats, _score_numbers, _mix_numbers)


@operation
def attend_halves(row, thread, threads):  # type: ignore[no-untyped-def]
    _attend(row, thread, threads, np.uint16, _keep_halves, _score_numbers, _mix_numbers)


@operation
def attend_blocks(row, thread, threads):  # type: ignore[no-untyped-def]
    _attend(row, thread, threads, np.int8, _keep_blocks, _score_blocks, _mix_blocks)


ATTEND = {"f32": attend, "f16": attend_halves, "q8_0": attend_blocks}  # by what a cache keeps


@inlined
def _activated(row, thread, threads, function):  # type: ignore[no-untyped-def]
    """OUT = function(OUT), times Y where there is one, and as integers; shared by pieces of 256 columns."""
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
        _packed(op, out, t, first, last)


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
