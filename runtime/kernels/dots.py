"""Products of a few inputs with stored weights, straight from their blocks: a weight is read once and never decoded.

Quantized weights are integers with a scale for each 16 or 32 of them. Inputs become integers of 16 bits with a scale
for each 32 (`pack`), so that a product is exact except for their rounding, 1e-5 of the largest of 32. Weights of 16 and
32 bits are multiplied with the inputs as they are.

An input is stored as float32 (width,), int16 (width,) and, for every 256 columns, 32 float32: the scales of eight times
32 columns, their sums, and the sums of sixteen times 16 columns. All are padded with zeros to a multiple of 256. If the
processor multiplies bytes, the integers' bytes follow these numbers (`byte_dots`).
"""

import numpy as np

from quants.kernels.jit import inlined, kernel
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import (
    LANES,
    absolute,
    every,
    every_int,
    float_bits,
    lane_numbers,
    larger,
    largest_lane,
    to_float,
    where,
)

from . import byte_dots
from .byte_dots import AHEAD, LEVELS, TAKES_BYTES, WITH_BYTES, q3_k_scales, spread
from .context_state import MAX_TOKENS
from .int16x32 import (
    bits_of,
    cpu_features,
    dot,
    each_twice,
    every_half,
    half_pair,
    joined,
    lanes_of,
    less,
    load_bfloats,
    load_bytes,
    load_floats,
    load_halves,
    load_nibbles,
    load_shorts,
    load_signed,
    load_small,
    load_word,
    looked_up,
    masked,
    multiply_add,
    prefetch,
    same_address,
    shifted_left,
    shifted_right,
    six_bit_numbers,
    stack_memory,
    sum_of_lanes,
    sums_of_lanes,
)
from .thread_team import FIELDS, array_at, operation

f32 = np.float32
BLOCK, SUPER = 32, 256
NUMBERS = WITH_BYTES if TAKES_BYTES else 32  # float32 stored for every 256 columns
MAGIC, LARGEST = f32(12582912), f32(32639)  # 127 * 256 + 127
TINY = f32(1e-30)
# twice the values of E2M1 codes
FP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
HALF_POWERS = np.exp2(np.arange(256) - 128.0).astype(f32)  # half the values of E8M0 codes
ZERO = f32(0)
SIX_BITS_ZERO = f32(-32)  # the value of code 0 of Q6_K
HOLDS_FOUR = "+avx512f" in cpu_features()  # registers hold the sums of four inputs


@inlined
def pack(x, x_at, columns, shorts, numbers, numbers_at):  # type: ignore[no-untyped-def]
    """Pack x[x_at : x_at + columns] as integers and numbers, both from their place for column x_at on.

    columns: a multiple of 256.
    """
    for start in range(0, columns, SUPER):
        to = numbers_at + start // SUPER * NUMBERS
        for k in range(8):
            at = x_at + start + BLOCK * k
            low, high = load(x, at), load(x, at + LANES)
            greatest = largest_lane(larger(absolute(low), absolute(high)))
            inverse = every(LARGEST / greatest if greatest > TINY else ZERO)
            low, high = low * inverse + MAGIC, high * inverse + MAGIC
            store(shorts, at, float_bits(low))
            store(shorts, at + LANES, float_bits(high))
            first, second = sum_of_lanes(low - MAGIC), sum_of_lanes(high - MAGIC)
            lost = (first + second) * ZERO  # NaN if one of them is not finite, which `greatest` may miss
            scale = (greatest / LARGEST if greatest > TINY else ZERO) + lost
            numbers[to + k], numbers[to + 8 + k] = scale, scale * (first + second)
            numbers[to + 16 + 2 * k], numbers[to + 17 + 2 * k] = scale * first, scale * second
        if TAKES_BYTES:
            spread(shorts, x_at + start, numbers, to)


@kernel
def pack_all(x, shorts, numbers):  # type: ignore[no-untyped-def]
    """Pack a whole array."""
    pack(x, 0, x.size, shorts, numbers, 0)


@kernel
def spread_all(shorts, numbers):  # type: ignore[no-untyped-def]
    """Write the data for products with bytes, of a whole array of integers, after their numbers."""
    if TAKES_BYTES:
        for piece in range(shorts.size // SUPER):
            spread(shorts, SUPER * piece, numbers, NUMBERS * piece)


# Blocks: f(raw, at, x, x_at, n, n_at, a, b) adds the products of one block to the lanes of a and b.


@inlined
def _scaled(codes, x, x_at, scale, total):  # type: ignore[no-untyped-def]
    return multiply_add(to_float(dot(codes, load_shorts(x, x_at))), scale, total)


@inlined
def _q8_0(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    return _scaled(load_signed(raw, at + 2), x, x_at, every_half(raw, at) * every(n[n_at]), a), b


@inlined
def _q4_0(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    return _scaled(less(load_nibbles(raw, at + 2), 8), x, x_at, every_half(raw, at) * every(n[n_at]), a), b


@inlined
def _q4_1(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    a = _scaled(load_nibbles(raw, at + 4), x, x_at, every_half(raw, at) * every(n[n_at]), a)
    return a, multiply_add(every_half(raw, at + 2), first_lane(n[n_at + 8]), b)


@inlined
def _q5_0(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    codes = joined(load_nibbles(raw, at + 6), shifted_left(bits_of(load_word(raw, at + 2)), 4))
    return _scaled(less(codes, 16), x, x_at, every_half(raw, at) * every(n[n_at]), a), b


@inlined
def _q5_1(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    codes = joined(load_nibbles(raw, at + 8), shifted_left(bits_of(load_word(raw, at + 4)), 4))
    a = _scaled(codes, x, x_at, every_half(raw, at) * every(n[n_at]), a)
    return a, multiply_add(every_half(raw, at + 2), first_lane(n[n_at + 8]), b)


@inlined
def _iq4_nl(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    codes = looked_up(LEVELS, raw, at + 2)
    return _scaled(codes, x, x_at, every_half(raw, at) * every(n[n_at]), a), b


@inlined
def first_lane(value):  # type: ignore[no-untyped-def]
    return where(lane_numbers() == 0, value, ZERO)


# Numbers: f(raw, at, n, n_at, known, found) returns where a block reads its numbers: the input's as they are, or those
# written to known[0:16], which is `found`.


@inlined
def _as_they_are(raw, at, n, n_at, known, stored):  # type: ignore[no-untyped-def]
    return n, n_at


@inlined
def _six_bits(raw, at, n, n_at, known, stored):  # type: ignore[no-untyped-def]
    """Compute the numbers of a block of Q4_K or Q5_K: lanes 0 … 7 the factors of the products, 8 … 15 the products of
    the minima.
    """
    store(known, 0, six_bit_numbers(raw, at) * half_pair(raw, at) * load(n, n_at))
    return stored, 0


@inlined
def _minima(f, f_at):  # type: ignore[no-untyped-def]
    return where(lane_numbers() < 8, ZERO, load(f, f_at))


@inlined
def _q4_k(raw, at, x, x_at, f, f_at, a, b):  # type: ignore[no-untyped-def]
    a += _minima(f, f_at)
    for k in range(4):
        codes, to = load_bytes(raw, at + 16 + 32 * k), x_at + 64 * k
        a, b = _both_halves(codes, x, to, every(f[f_at + 2 * k]), every(f[f_at + 2 * k + 1]), a, b)
    return a, b


@inlined
def _both_halves(codes, x, x_at, first, second, a, b):  # type: ignore[no-untyped-def]
    """Multiply the lower four bits by the first 32 inputs, the upper ones by the next."""
    return _scaled(masked(codes, 15), x, x_at, first, a), _scaled(shifted_right(codes, 4), x, x_at + 32, second, b)


@inlined
def _q5_k(raw, at, x, x_at, f, f_at, a, b):  # type: ignore[no-untyped-def]
    fifth = load_bytes(raw, at + 16)
    a += _minima(f, f_at)
    for k in range(4):
        first, second = every(f[f_at + 2 * k]), every(f[f_at + 2 * k + 1])
        a, b = _with_fifth(raw, at + 48 + 32 * k, fifth, 2 * k, x, x_at + 64 * k, first, second, a, b)
    return a, b


@inlined
def _with_fifth(raw, at, fifth, bit, x, x_at, first, second, a, b):  # type: ignore[no-untyped-def]
    codes, high = load_bytes(raw, at), shifted_right(fifth, bit)
    low = joined(masked(codes, 15), shifted_left(masked(high, 1), 4))
    upper = joined(shifted_right(codes, 4), shifted_left(masked(high, 2), 3))
    return _scaled(low, x, x_at, first, a), _scaled(upper, x, x_at + 32, second, b)


@inlined
def _q6_k(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    scales = to_float(load_small(raw, at + 192)) * every_half(raw, at + 208)
    f = scales * each_twice(load(n, n_at), 0)
    a = multiply_add(scales * SIX_BITS_ZERO, load(n, n_at + 16), a)
    high = load_bytes(raw, at + 128)
    a, b = _low_and_high(load_bytes(raw, at), high, 0, x, x_at, lanes_of(f, 0), lanes_of(f, 2), a, b)
    a, b = _low_and_high(load_bytes(raw, at + 32), high, 2, x, x_at + 32, lanes_of(f, 1), lanes_of(f, 3), a, b)
    high = load_bytes(raw, at + 160)
    a, b = _low_and_high(load_bytes(raw, at + 64), high, 0, x, x_at + 128, lanes_of(f, 4), lanes_of(f, 6), a, b)
    return _low_and_high(load_bytes(raw, at + 96), high, 2, x, x_at + 160, lanes_of(f, 5), lanes_of(f, 7), a, b)


@inlined
def _low_and_high(codes, high, bit, x, x_at, first, second, a, b):  # type: ignore[no-untyped-def]
    """Multiply codes of six bits: the lower four of two are in a byte, for inputs 64 apart."""
    low = joined(masked(codes, 15), shifted_left(masked(shifted_right(high, bit), 3), 4))
    upper = joined(shifted_right(codes, 4), shifted_left(masked(shifted_right(high, bit + 4), 3), 4))
    return _scaled(low, x, x_at, first, a), _scaled(upper, x, x_at + 64, second, b)


@inlined
def _iq4_xs_numbers(raw, at, n, n_at, known, stored):  # type: ignore[no-untyped-def]
    upper, lower = load_word(raw, at) >> 16, load_word(raw, at + 4)
    k = lane_numbers() & 7
    codes = ((every_int(lower) >> 4 * k) & 15) + 16 * ((every_int(upper) >> 2 * k) & 3) - 32
    store(known, 0, to_float(codes) * every_half(raw, at) * load(n, n_at))
    return stored, 0


@inlined
def _iq4_xs(raw, at, x, x_at, f, f_at, a, b):  # type: ignore[no-untyped-def]
    for k in range(8):
        codes = looked_up(LEVELS, raw, at + 8 + 16 * k)
        a, b = b, _scaled(codes, x, x_at + 32 * k, every(f[f_at + k]), a)
    return a, b


@inlined
def _q2_k(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    both = load_small(raw, at)
    f = to_float(both & 15) * every_half(raw, at + 80) * each_twice(load(n, n_at), 0)
    a += to_float((both >> 4) & 15) * -every_half(raw, at + 82) * load(n, n_at + 16)
    codes = load_bytes(raw, at + 16)
    a = _scaled(masked(codes, 3), x, x_at, lanes_of(f, 0), a)
    b = _scaled(masked(shifted_right(codes, 2), 3), x, x_at + 32, lanes_of(f, 1), b)
    a = _scaled(masked(shifted_right(codes, 4), 3), x, x_at + 64, lanes_of(f, 2), a)
    b = _scaled(shifted_right(codes, 6), x, x_at + 96, lanes_of(f, 3), b)
    codes = load_bytes(raw, at + 48)
    a = _scaled(masked(codes, 3), x, x_at + 128, lanes_of(f, 4), a)
    b = _scaled(masked(shifted_right(codes, 2), 3), x, x_at + 160, lanes_of(f, 5), b)
    a = _scaled(masked(shifted_right(codes, 4), 3), x, x_at + 192, lanes_of(f, 6), a)
    return a, _scaled(shifted_right(codes, 6), x, x_at + 224, lanes_of(f, 7), b)


@inlined
def _q3_k(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    f = (q3_k_scales(raw, at) - f32(32)) * every_half(raw, at + 108) * each_twice(load(n, n_at), 0)
    third, low, upper = load_bytes(raw, at), load_bytes(raw, at + 32), load_bytes(raw, at + 64)
    a = _with_third(low, 0, third, 0, x, x_at, lanes_of(f, 0), a)
    b = _with_third(low, 2, third, 1, x, x_at + 32, lanes_of(f, 1), b)
    a = _with_third(low, 4, third, 2, x, x_at + 64, lanes_of(f, 2), a)
    b = _with_third(low, 6, third, 3, x, x_at + 96, lanes_of(f, 3), b)
    a = _with_third(upper, 0, third, 4, x, x_at + 128, lanes_of(f, 4), a)
    b = _with_third(upper, 2, third, 5, x, x_at + 160, lanes_of(f, 5), b)
    a = _with_third(upper, 4, third, 6, x, x_at + 192, lanes_of(f, 6), a)
    return a, _with_third(upper, 6, third, 7, x, x_at + 224, lanes_of(f, 7), b)


@inlined
def _with_third(codes, at, third, bit, x, x_at, scale, total):  # type: ignore[no-untyped-def]
    """Multiply codes of three bits: two of each are in a byte with those of three others, the third in one with
    seven.
    """
    high = shifted_left(masked(shifted_right(third, bit), 1), 2)
    return _scaled(less(joined(masked(shifted_right(codes, at), 3), high), 4), x, x_at, scale, total)


@inlined
def _tq2_0_numbers(raw, at, n, n_at, known, stored):  # type: ignore[no-untyped-def]
    store(known, 0, load(n, n_at) * every_half(raw, at + 64))
    return stored, 0


@inlined
def _tq2_0(raw, at, x, x_at, f, f_at, a, b):  # type: ignore[no-untyped-def]
    for k in range(4):
        low, upper = load_bytes(raw, at), load_bytes(raw, at + 32)
        to, codes = x_at + 32 * k, less(masked(shifted_right(low, 2 * k), 3), 1)
        a = _scaled(codes, x, to, every(f[f_at + k]), a)
        codes = less(masked(shifted_right(upper, 2 * k), 3), 1)
        b = _scaled(codes, x, to + 128, every(f[f_at + 4 + k]), b)
    return a, b


@inlined
def _mxfp4(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    codes = looked_up(FP4_LEVELS, raw, at + 1)
    return _scaled(codes, x, x_at, every(HALF_POWERS[raw[at]] * n[n_at]), a), b


@inlined
def _f32(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    a = multiply_add(load_floats(raw, at), load(x, x_at), a)
    return a, multiply_add(load_floats(raw, at + 64), load(x, x_at + LANES), b)


@inlined
def _f16(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    a = multiply_add(load_halves(raw, at), load(x, x_at), a)
    return a, multiply_add(load_halves(raw, at + 32), load(x, x_at + LANES), b)


@inlined
def _bf16(raw, at, x, x_at, n, n_at, a, b):  # type: ignore[no-untyped-def]
    a = multiply_add(load_bfloats(raw, at), load(x, x_at), a)
    return a, multiply_add(load_bfloats(raw, at + 32), load(x, x_at + LANES), b)


# Operations: fields from 2 on are
WEIGHTS, ROW_BYTES, ROWS, WIDTH, FLOATS_AT, SHORTS_AT, NUMBERS_AT, OUT, OUT_WIDTH, BIAS, ADDS, STATE = range(2, 14)
# (addresses of the weights, the input's parts, the output (tokens, OUT_WIDTH), the bias or 0, and the pass's state,
# whose first number counts the tokens); ADDS: add to the output.
CHOICE, APART, USED, OF_TOKENS = range(14, 18)
NO_CHOICE = np.array([0] * MAX_TOKENS + [*range(MAX_TOKENS)] * 2, np.int64)  # a single expert, which all choose
# Products with the experts that each token chooses; USED, their number, is 0 for a plain weight. Weights and biases are
# those of all experts, one after the other, of ROWS rows each. The output has a row for each place (token * USED + rank
# of the expert), and so has the input if OF_TOKENS is 0. At CHOICE + APART * thread are int64 of MAX_TOKENS * USED
# places: the expert of each, then all places in the order of their experts, then the tokens of those.


@inlined
def _each_expert(row, thread, threads, multiply, how):  # type: ignore[no-untyped-def]
    """Compute out[p, r] = row r of the weights · input p, for this thread's r.

    p: a token, or one of the experts that it chooses, whose weights are read once for all tokens. multiply: rows first
    … last - 1 of one expert with the inputs of all that chose it, order[begin:end]; `how` is passed on to it.
    """
    op = array_at(row, FIELDS, np.int64)
    rows, used = op[ROWS], max(1, op[USED])
    count = array_at(op[STATE], 1, np.int64)[0] * used
    table = op[CHOICE] + thread * op[APART] if op[USED] else NO_CHOICE.ctypes.data
    ids = array_at(table, 3 * MAX_TOKENS * used, np.int64)
    order = array_at(table + 8 * MAX_TOKENS * used, MAX_TOKENS * used, np.int64)
    sources = array_at(table + 8 * MAX_TOKENS * used * (2 if op[OF_TOKENS] else 1), MAX_TOKENS * used, np.int64)
    first, last = rows * thread // threads, rows * (thread + 1) // threads
    begin = 0
    while begin < count:  # the next expert, and all that chose it
        expert, end = ids[order[begin]], begin + 1
        while end < count and ids[order[end]] == expert:
            end += 1
        raw = array_at(op[WEIGHTS] + expert * rows * op[ROW_BYTES], rows * op[ROW_BYTES], np.uint8)
        bias = array_at(op[BIAS] + 4 * expert * rows if op[BIAS] else op[OUT], rows, np.float32)
        multiply(op, raw, bias, order, sources, begin, end, first, last, how)
        begin = end


@inlined
def _row_by_row(op, raw, bias, order, sources, begin, end, first, last, how):  # type: ignore[no-untyped-def]
    """Multiply row by row. how: the address of the input, its type and size; a block: so many weights in so many
    bytes.
    """
    inputs, dtype, itemsize, values, size, block, numbers = how
    width, out_width = op[WIDTH], op[OUT_WIDTH]
    padded = (width + SUPER - 1) // SUPER * SUPER
    out = array_at(op[OUT], 1, np.float32)
    for r in range(first, last):
        i, at = begin, r * op[ROW_BYTES]
        while HOLDS_FOUR and i + 4 <= end:  # at a time, or two: their weights are unpacked once
            four = (
                _input(op, sources[i], inputs, itemsize, dtype, padded),
                _input(op, sources[i + 1], inputs, itemsize, dtype, padded),
                _input(op, sources[i + 2], inputs, itemsize, dtype, padded),
                _input(op, sources[i + 3], inputs, itemsize, dtype, padded),
            )
            totals = _with_four(raw, at, width, four, values, size, block, numbers)
            for own in range(4):
                _put(op, out, order[i + own] * out_width, bias, r, totals[own])
            i += 4
        while i + 2 <= end:
            one, other = (
                _input(op, sources[i], inputs, itemsize, dtype, padded),
                _input(op, sources[i + 1], inputs, itemsize, dtype, padded),
            )
            both = _with_two(raw, at, width, one, other, values, size, block, numbers)
            for own in range(2):
                _put(op, out, order[i + own] * out_width, bias, r, both[own])
            i += 2
        if i < end:
            only = _input(op, sources[i], inputs, itemsize, dtype, padded)
            total = _with_one(raw, at, width, only, values, size, block, numbers)
            _put(op, out, order[i] * out_width, bias, r, total)


@inlined
def _in_pairs(op, raw, bias, order, sources, begin, end, first, last, how):  # type: ignore[no-untyped-def]
    """Multiply two rows at a time with four inputs, which are read once for both. how: bytes of a block, and its
    functions.
    """
    size, block = how
    byte_dots.align_stack()
    width, out_width, row_bytes = op[WIDTH], op[OUT_WIDTH], op[ROW_BYTES]
    out, pair = array_at(op[OUT], 1, np.float32), 2 * row_bytes
    ahead = (AHEAD + pair - 1) // pair * pair
    for r in range(first, last, 2):
        s = min(r + 1, last - 1)  # the same row if there is no other
        i, at, other = begin, r * row_bytes, s * row_bytes
        while i + 4 <= end:
            four = (
                _numbers(op, sources[i]),
                _numbers(op, sources[i + 1]),
                _numbers(op, sources[i + 2]),
                _numbers(op, sources[i + 3]),
            )
            totals = byte_dots.four_with_two(raw, at, other, ahead, width, four, size, block)
            for own in range(4):
                _put_both(op, out, order[i + own] * out_width, bias, r, s, totals[own])
            i += 4
        for row in range(r, s + 1):  # two inputs are faster with one row
            at, j = row * row_bytes, i
            while j + 2 <= end:
                n = _numbers(op, sources[j]), _numbers(op, sources[j + 1])
                two = byte_dots.with_two(raw, at, width, n, size, block)
                _put(op, out, order[j] * out_width, bias, row, two[0])
                _put(op, out, order[j + 1] * out_width, bias, row, two[1])
                j += 2
            if j < end:
                one = byte_dots.with_one(raw, at, width, _numbers(op, sources[j]), size, block)
                _put(op, out, order[j] * out_width, bias, row, one)


@inlined
def _numbers(op, place):  # type: ignore[no-untyped-def]
    """Return the address of the numbers."""
    return op[NUMBERS_AT] + place * ((op[WIDTH] + SUPER - 1) // SUPER) * (4 * NUMBERS)


@inlined
def _put_both(op, out, to, bias, r, s, totals):  # type: ignore[no-untyped-def]
    _put(op, out, to, bias, r, totals[0])
    if s > r:
        _put(op, out, to, bias, s, totals[1])


@inlined
def _input(op, place, inputs, itemsize, dtype, padded):  # type: ignore[no-untyped-def]
    """Return the input of a row of weights, and its numbers."""
    at = padded * place
    x = array_at(inputs + itemsize * at, padded, dtype)
    return x, array_at(op[NUMBERS_AT] + at // SUPER * (4 * NUMBERS), padded, np.float32)


@inlined
def _put(op, out, to, bias, r, total):  # type: ignore[no-untyped-def]
    """Store row r of the product in the row of the output that begins at out[to]."""
    if op[BIAS] != 0:
        total += bias[r]
    out[to + r] = out[to + r] + total if op[ADDS] else total


@inlined
def _fetch(raw, at, size):  # type: ignore[no-untyped-def]
    for line in range(0, size, 64):
        prefetch(raw, at + AHEAD + line)


# Products of the row of weights at raw[at:] with inputs, each in the same way, however many there are. Two sums of each
# alternate: neither waits for the other.


@inlined
def _with_one(raw, at, width, x, values, size, block, numbers):  # type: ignore[no-untyped-def]
    memory = stack_memory()
    again, a, b = same_address(memory), every(ZERO), every(ZERO)
    for column in range(0, width // values * values, values):
        _fetch(raw, at, size)
        f, f_at = _numbers_of(raw, at, x[1], column, memory, again, numbers)
        b, a = block(raw, at, x[0], column, f, f_at, a, b)
        at += size
    return sum_of_lanes(a + b)


@inlined
def _with_two(raw, at, width, x, y, values, size, block, numbers):  # type: ignore[no-untyped-def]
    memory = stack_memory()
    again = same_address(memory)
    a, b, c, d = every(ZERO), every(ZERO), every(ZERO), every(ZERO)
    for column in range(0, width // values * values, values):
        _fetch(raw, at, size)
        f, f_at = _numbers_of(raw, at, x[1], column, memory, again, numbers)
        g, g_at = _numbers_of(raw, at, y[1], column, memory + 64, again + 64, numbers)
        b, a = block(raw, at, x[0], column, f, f_at, a, b)
        d, c = block(raw, at, y[0], column, g, g_at, c, d)
        at += size
    return sum_of_lanes(a + b), sum_of_lanes(c + d)


@inlined
def _numbers_of(raw, at, n, column, memory, again, numbers):  # type: ignore[no-untyped-def]
    known, stored = array_at(memory, 16, np.float32), array_at(again, 16, np.float32)
    return numbers(raw, at, n, (column >> 8) * NUMBERS + (column >> 5 & 7), known, stored)


@inlined
def _with_four(raw, at, width, x, values, size, block, numbers):  # type: ignore[no-untyped-def]
    memory = stack_memory()
    again, zero = same_address(memory), every(ZERO)
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    for column in range(0, width // values * values, values):
        _fetch(raw, at, size)
        n, n_at = _numbers_of(raw, at, x[0][1], column, memory, again, numbers)
        m, m_at = _numbers_of(raw, at, x[1][1], column, memory + 64, again + 64, numbers)
        o, o_at = _numbers_of(raw, at, x[2][1], column, memory + 128, again + 128, numbers)
        p, p_at = _numbers_of(raw, at, x[3][1], column, memory + 192, again + 192, numbers)
        b, a = block(raw, at, x[0][0], column, n, n_at, a, b)
        d, c = block(raw, at, x[1][0], column, m, m_at, c, d)
        f, e = block(raw, at, x[2][0], column, o, o_at, e, f)
        h, g = block(raw, at, x[3][0], column, p, p_at, g, h)
        at += size
    return sums_of_lanes(a + b, c + d, e + f, g + h)


@inlined
def _of_shorts(row, thread, threads, values, size, block, numbers):  # type: ignore[no-untyped-def]
    inputs = array_at(row, FIELDS, np.int64)[SHORTS_AT]
    _each_expert(row, thread, threads, _row_by_row, (inputs, np.int16, 2, values, size, block, numbers))


@inlined
def _of_floats(row, thread, threads, size, block):  # type: ignore[no-untyped-def]
    inputs = array_at(row, FIELDS, np.int64)[FLOATS_AT]
    _each_expert(row, thread, threads, _row_by_row, (inputs, np.float32, 4, BLOCK, size, block, _as_they_are))


@inlined
def _of_super_blocks(row, thread, threads, size, block, of_bytes, numbers):  # type: ignore[no-untyped-def]
    """Multiply blocks of 256 weights."""
    if TAKES_BYTES:
        _each_expert(row, thread, threads, _in_pairs, (size, of_bytes))
    else:
        _of_shorts(row, thread, threads, SUPER, size, block, numbers)


@operation
def f32_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_floats(row, thread, threads, 128, _f32)


@operation
def f16_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_floats(row, thread, threads, 64, _f16)


@operation
def bf16_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_floats(row, thread, threads, 64, _bf16)


@operation
def q8_0_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_shorts(row, thread, threads, 32, 34, _q8_0, _as_they_are)


@operation
def q4_0_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_shorts(row, thread, threads, 32, 18, _q4_0, _as_they_are)


@operation
def q4_1_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_shorts(row, thread, threads, 32, 20, _q4_1, _as_they_are)


@operation
def q5_0_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_shorts(row, thread, threads, 32, 22, _q5_0, _as_they_are)


@operation
def q5_1_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_shorts(row, thread, threads, 32, 24, _q5_1, _as_they_are)


@operation
def iq4_nl_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_shorts(row, thread, threads, 32, 18, _iq4_nl, _as_they_are)


@operation
def q2_k_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_super_blocks(row, thread, threads, 84, _q2_k, byte_dots.q2_k, _as_they_are)


@operation
def q4_k_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_super_blocks(row, thread, threads, 144, _q4_k, byte_dots.q4_k, _six_bits)


@operation
def q5_k_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_super_blocks(row, thread, threads, 176, _q5_k, byte_dots.q5_k, _six_bits)


@operation
def q6_k_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_super_blocks(row, thread, threads, 210, _q6_k, byte_dots.q6_k, _as_they_are)


@operation
def iq4_xs_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_super_blocks(row, thread, threads, 136, _iq4_xs, byte_dots.iq4_xs, _iq4_xs_numbers)


@operation
def q3_k_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_super_blocks(row, thread, threads, 110, _q3_k, byte_dots.q3_k, _as_they_are)


@operation
def tq2_0_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_super_blocks(row, thread, threads, 66, _tq2_0, byte_dots.tq2_0, _tq2_0_numbers)


@operation
def mxfp4_rows(row, thread, threads):  # type: ignore[no-untyped-def]
    _of_shorts(row, thread, threads, 32, 17, _mxfp4, _as_they_are)


OF_FORMAT = {
    "F32": f32_rows,
    "F16": f16_rows,
    "BF16": bf16_rows,
    "Q8_0": q8_0_rows,
    "Q4_0": q4_0_rows,
    "Q4_1": q4_1_rows,
    "Q5_0": q5_0_rows,
    "Q5_1": q5_1_rows,
    "IQ4_NL": iq4_nl_rows,
    "Q2_K": q2_k_rows,
    "Q4_K": q4_k_rows,
    "Q5_K": q5_k_rows,
    "Q6_K": q6_k_rows,
    "IQ4_XS": iq4_xs_rows,
    "Q3_K": q3_k_rows,
    "TQ2_0": tq2_0_rows,
    "MXFP4": mxfp4_rows,
}
OF_FLOATS = frozenset({"F32", "F16", "BF16"})  # whose inputs are multiplied as they are
