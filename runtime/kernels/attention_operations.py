"""Attention of one to eight tokens over the caches of their texts, as operations for `team.run`.

Three operations follow one another, with a barrier after each. `prepare_heads` applies the steps on queries, keys and
values (norms, rotation, factors), and writes keys and values to the caches. `attend` computes partial results: units of
a part of the positions, of a span of neighbouring groups (heads with common keys), and for each group of up to
ROW_LIMIT rows of queries (of a text's tokens and of its heads); threads share the units. A long text has one span:
memory is read in order, twice as fast as group by group. `finish_heads` merges the parts, and applies gates.

Units do not depend on the number of threads, and so the results do not either. A text's tokens are consecutive in the
pass.
"""

import numpy as np

from quants.kernels.half import to_half
from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import (
    LANES,
    absolute,
    every,
    every_int,
    lane,
    lane_numbers,
    larger,
    largest_lane,
    to_float,
    where,
)
from quants.kernels.rounding import half_away
from quants.kernels.small_blocks import Q8_BYTES, Q8_TOP, VALUES

from . import activations
from .attention_tiles import (
    KEYS_OF,
    ROWS,
    VECTORS,
    mix_one,
    mix_one_narrow,
    mix_rows,
    mix_rows_narrow,
    mix_two,
    score_one,
    score_rows,
    score_two,
)
from .byte_dots import AHEAD
from .context_state import ANGLES, POSITIONS, SIZE, SLOTS, TOKENS
from .dots import NUMBERS, SUPER, pack
from .exponential import exp, exp_of_lanes, sigmoid, softplus
from .int16x32 import CACHE_LINE, multiply_add, prefetch, prefetch_later, sum_of_lanes, touch
from .thread_team import FIELDS, array_at, operation

f32 = np.float32
ZERO, ONE, NOTHING = f32(0), f32(1), f32(-np.inf)

F32, F16, Q8_0 = 0, 1, 2  # types of caches
CACHE_TYPES = {"f32": F32, "f16": F16, "q8_0": Q8_0}

STATE = 2  # address of what `pass_state` describes
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

# Of `attend` and `finish_heads`: HEADS are those of a group with common keys, SCALE and KIND as above
# PARTS: the maximum number of parts of the positions
GROUPS, VALUE_WIDTH, WINDOW, CHUNK, PARTIAL, PARTS = 13, 14, 15, 16, 17, 18
# Of `attend`: tables as CACHE, ALL_VALUES 0 where values are the first columns of keys; a float64; float32 (heads,) or
# 0; float32 (heads, TERMS_APART) that are added to the scores, or 0; the room of each thread, in float32
ALL_KEYS, ALL_VALUES, CAP, SLOPES, TERMS, TERMS_APART, SCRATCH, ROOM = 19, 20, 21, 22, 23, 24, 28, 29
# Of `finish_heads`: float32 (heads,) or 0; gates, with their distances by token and by head; their activation; whether
# a head has a single one; heads in separate rows, OUT_APART from one another, or 0
SINKS, GATE, GATE_WIDTH, GATE_APART, GATE_TYPE, GATE_OF_HEAD, ROW_EACH = 19, 20, 21, 22, 23, 24, 25
SIGMOID, SOFTPLUS = 1, 2

ROW_LIMIT = 16  # rows of queries that use a key together
MIN_PART = 96  # positions
UNITS = 24  # maximum of a text, unless its heads make more: as many for two threads as for three
FEW_PARTS = 4  # with fewer, groups are in several spans
LONGEST, BLOCK_FLOATS = 64, 8192  # positions of a block, and what fits a core's first cache
STEP = 8  # positions of which all groups are read together; they fit the first cache


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
            _packed(op, place, op[OUT_WIDTH])


@inlined
def _packed(op, place, columns):  # type: ignore[no-untyped-def]
    """Pack this many numbers of OUT from a place on as integers, both multiples of 256."""
    out = array_at(op[OUT] + 4 * place, columns, np.float32)
    shorts = array_at(op[SHORTS] + 2 * place, columns, np.int16)
    size = columns // SUPER * NUMBERS
    pack(out, 0, columns, shorts, array_at(op[NUMBERS_AT] + 4 * (place // SUPER * NUMBERS), size, np.float32), 0)


@inlined
def _first_seen(op, at):  # type: ignore[no-untyped-def]
    """Return the first position visible to the token at this one."""
    first = max(0, at - op[WINDOW] + 1) if op[WINDOW] else np.int64(0)
    return max(first, at // op[CHUNK] * op[CHUNK]) if op[CHUNK] else first


@inlined
def _text_end(state, t):  # type: ignore[no-untyped-def]
    """Return the number of the token after those of the text of token t."""
    slot = state[SLOTS + t]
    while t < state[TOKENS] and state[SLOTS + t] == slot:
        t += 1
    return t


@inlined
def _pieces(op, rows):  # type: ignore[no-untyped-def]
    """Return the number of pieces of a text's rows, and the rows of each."""
    pieces = (rows + ROW_LIMIT - 1) // ROW_LIMIT
    each = ((rows + pieces - 1) // pieces + ROWS - 1) // ROWS * ROWS
    return (rows + each - 1) // each, each


@inlined
def _parts(op, pieces, length):  # type: ignore[no-untyped-def]
    """Return the number of parts of the positions, and the length of each."""
    wanted = min(length // MIN_PART, op[PARTS], UNITS // pieces)
    wanted = wanted // 2 * 2 if wanted > 1 else 1
    each = ((length + wanted - 1) // wanted + 3) // 4 * 4
    return (length + each - 1) // each, each


@inlined
def _spans(op, pieces, parts):  # type: ignore[no-untyped-def]
    """Return the number of spans of the groups, and the groups of each."""
    wanted = 1 if parts >= FEW_PARTS else max(1, min(op[GROUPS], UNITS // (pieces * parts)))
    each = (op[GROUPS] + wanted - 1) // wanted
    return (op[GROUPS] + each - 1) // each, each


@inlined
def _as_numbers(width):  # type: ignore[no-untyped-def]
    """Return elements of a head's row in a cache of numbers."""
    return width


@inlined
def _as_blocks(width):  # type: ignore[no-untyped-def]
    return width // VALUES * Q8_BYTES


@inlined
def _filled_up(rows, apart, count, width, block):  # type: ignore[no-untyped-def]
    """Copy rows, `apart` from each other, to rows of whole vectors. Values after a row's width are left as they are."""
    wide = (width + LANES - 1) // LANES * LANES
    for j in range(count):
        for i in range(width):
            block[j * wide + i] = rows[j * apart + i]


@inlined
def _touch(address, bytes_):  # type: ignore[no-untyped-def]
    """Read a byte of each cache line, in ascending order: the processor then prefetches, which it does not when groups
    read their parts one after the other.
    """
    memory = array_at(address, bytes_, np.uint8)
    for i in range(0, bytes_, CACHE_LINE):
        prefetch(memory, i + AHEAD)
        touch(memory, i)


@inlined
def _bring_nearer(rows, first, count, apart, width, size):  # type: ignore[no-untyped-def]
    """Prefetch rows of an array, `apart` from each other: `width` elements of each."""
    for j in range(first, first + count):
        for i in range(0, width, CACHE_LINE // size):
            prefetch_later(rows, j * apart + i)


@inlined
def _score(q, q_at, rows, width, keys, stride, count, scores, first, cached, size):  # type: ignore[no-untyped-def]
    """Compute scores[first + j], in row r, = row r of q, from q_at on, times key j. Meanwhile prefetch the keys LONGEST
    later.

    cached: the keys in the cache, the distance between them, and their width there, or 0.
    """
    r = 0
    while r < rows:
        left_rows = rows - r
        tall = left_rows > 2 or (left_rows == 2 and ROWS == 2)
        many = KEYS_OF[0] if tall else (KEYS_OF[1] if left_rows == 2 else KEYS_OF[2])
        for j in range(0, count, many):
            left, at, to = count - j, j * stride, r * SCORES + first + j
            if r == 0 and cached[2]:
                _bring_nearer(cached[0], j + LONGEST, many, cached[1], cached[2], size)
            if tall:
                score_rows(q, q_at + r * width, width, left_rows, keys, at, stride, left, width, scores, to, SCORES)
            elif left_rows == 2:
                score_two(q, q_at + r * width, width, left_rows, keys, at, stride, left, width, scores, to, SCORES)
            else:
                score_one(q, q_at + r * width, width, left_rows, keys, at, stride, left, width, scores, to, SCORES)
        r += ROWS if tall else left_rows


SCORES = LONGEST + LANES  # from one row of scores to the next: tiles write past the last position


@inlined
def _mix(weights, first, rows, values, stride, count, width, out, out_at, apart, size, ahead):  # type: ignore[no-untyped-def]
    """Add to out[out_at:], in row r, the sum of weights[first + j], in row r, times values[j]; out's rows are `apart`
    from each other.

    width: a multiple of 16. Elements of values `ahead` later are prefetched meanwhile.
    """
    r = 0
    while r < rows:
        left, w_at, c = rows - r, r * SCORES + first, 0
        one, two = left == 1, left == 2 and ROWS > 2
        while c + VECTORS * LANES <= width:
            at = out_at + r * apart + c
            if one:
                mix_one(weights, w_at, SCORES, left, values, c, stride, count, out, at, apart, ahead)
            elif two:
                mix_two(weights, w_at, SCORES, left, values, c, stride, count, out, at, apart, ahead)
            else:
                mix_rows(weights, w_at, SCORES, left, values, c, stride, count, out, at, apart, ahead)
            c += VECTORS * LANES
        while c < width:
            at = out_at + r * apart + c
            if one:
                mix_one_narrow(weights, w_at, SCORES, left, values, c, stride, count, out, at, apart, ahead)
            else:
                mix_rows_narrow(weights, w_at, SCORES, left, values, c, stride, count, out, at, apart, ahead)
            c += 2 * LANES if size == 1 else LANES
        r, ahead = r + (1 if one else (2 if two else ROWS)), 0


@inlined
def _weigh(op, numbers, scores, begin, count, at, head, partial, wide):  # type: ignore[no-untyped-def]
    """Turn scores of one row with positions from `begin` on into weights relative to the largest score so far.

    at: the row's position. partial: the weighted values so far, `wide` numbers, the largest score and the sum of
    weights.
    """
    first, last = max(_first_seen(op, at), begin) - begin, min(at + 1 - begin, count)
    if first >= last:
        for i in range(0, count, LANES):
            store(scores, i, every(ZERO))
        return
    if op[SLOPES]:
        slope = every(array_at(op[SLOPES] + 4 * head, 1, np.float32)[0])
        for i in range(0, count, LANES):
            distance = to_float(every_int(at - begin - i) - lane_numbers())
            store(scores, i, load(scores, i) - slope * distance)
    if op[TERMS]:
        terms = array_at(op[TERMS] + 4 * (head * op[TERMS_APART] + begin), count, np.float32)
        for i in range(count):
            scores[i] += terms[i]
    if numbers[CAP] > 0:
        activations.each_softcap(scores[first:last], f32(numbers[CAP]))
    if first > 0 or last < (count + LANES - 1) // LANES * LANES:
        for i in range(0, count, LANES):
            place = lane_numbers() + i
            seen = where(place >= first, load(scores, i), NOTHING)
            store(scores, i, where(place < last, seen, NOTHING))
    top = load(scores, 0)
    for i in range(LANES, count, LANES):
        top = larger(load(scores, i), top)
    greatest, before = largest_lane(top), partial[wide]
    if greatest > before:
        share = exp(before - greatest)
        for i in range(0, wide, LANES):
            store(partial, i, load(partial, i) * share)
        partial[wide] = greatest
        partial[wide + 1] *= share
    greatest, total = every(partial[wide]), every(ZERO)
    for i in range(0, count, LANES):
        weight = exp_of_lanes(load(scores, i) - greatest)
        store(scores, i, weight)
        total = total + weight
    partial[wide + 1] += sum_of_lanes(total)


@inlined
def _attend_unit(op, numbers, state, unit, thread, dtype, elements, size):  # type: ignore[no-untyped-def]
    """Compute partial results of a unit: rows first … last - 1 of the text that begins with token t, in groups low …
    high - 1.

    dtype: the type of a cache's elements, of `size` bytes; elements(width): how many a head's row has.
    """
    t, low, high, first, last, start, stop, _ = unit
    rows, width, value_width = last - first, op[HEAD_WIDTH], op[VALUE_WIDTH]
    wide, value_wide = (width + LANES - 1) // LANES * LANES, (value_width + LANES - 1) // LANES * LANES
    apart, groups = value_wide + LANES, high - low
    room = op[SCRATCH] + 4 * op[ROOM] * thread
    block_at, block_v_at = room, room + 4 * LONGEST * wide
    scores_at = block_v_at + 4 * (LONGEST * value_wide + LANES)
    mixed_at = scores_at + 4 * (groups * rows + ROWS) * SCORES  # a tile may write rows past the last
    q_at = mixed_at + 4 * groups * rows * apart
    block, block_v = array_at(block_at, LONGEST * wide, dtype), array_at(block_v_at, LONGEST * value_wide, dtype)
    if width < wide:
        block[:] = 0
    if value_width < value_wide:
        block_v[:] = 0
    scores = array_at(scores_at, groups * rows * SCORES, np.float32)
    mixed = array_at(mixed_at, groups * rows * apart, np.float32)
    q = array_at(q_at, groups * rows * wide, np.float32)
    _ask(op, numbers, t, low, groups, first, rows, q, mixed)
    slot, own, own_v = state[SLOTS + t], elements(width), elements(value_width)
    keys_at, apart_k = array_at(op[ALL_KEYS] + 8 * slot, 1, np.int64)[0], op[GROUPS] * own
    values_at, next_v, apart_v = _values_of(op, slot, keys_at, own, own_v)
    long = max(LANES, min(LONGEST, BLOCK_FLOATS // max(wide, value_wide) // LANES * LANES))
    touches = size == 4 and groups > 1  # otherwise multiplying takes longer, and lines are fetched one by one meanwhile
    short = (STEP if rows > 1 else 2 * STEP) if touches else long
    for begin in range(start, stop, long):
        count = min(long, stop - begin)
        for j in range(0, count, short):
            at, many = keys_at + size * ((begin + j) * apart_k + low * own), min(short, count - j)
            if touches:
                _touch(at, size * ((many - 1) * apart_k + groups * own))
            for g in range(groups):
                address, stride = at + size * g * own, apart_k
                if width < wide:
                    _filled_up(array_at(address, apart_k * many, dtype), apart_k, many, width, block)
                    address, stride = block_at, wide
                keys, to = array_at(address, stride * many, dtype), g * rows * SCORES + j
                cached = array_at(at + size * g * own, apart_k, dtype), apart_k, 0 if touches else own
                _score(q, g * rows * wide, rows, wide, keys, stride, many, scores, to, cached, size)
        _weigh_all(op, numbers, state, unit, begin, count, scores_at, mixed_at)
        for j in range(0, count, short):
            at, many = values_at + size * ((begin + j) * apart_v + low * next_v), min(short, count - j)
            if touches:
                _touch(at, size * ((many - 1) * apart_v + groups * own_v))
            for g in range(groups):
                address, stride = at + size * g * next_v, apart_v
                if value_width < value_wide:
                    _filled_up(array_at(address, apart_v * many, dtype), apart_v, many, value_width, block_v)
                    address, stride = block_v_at, value_wide
                ahead = 0 if touches or value_width < value_wide else LONGEST * stride
                values, w_at, to = array_at(address, stride * many, dtype), g * rows * SCORES + j, g * rows * apart
                _mix(scores, w_at, rows, values, stride, many, value_wide, mixed, to, apart, size, ahead)
    _keep_partial(op, unit, mixed, apart)


@inlined
def _values_of(op, slot, keys_at, own, own_v):  # type: ignore[no-untyped-def]
    """Where a text's values begin, how far those of two groups are apart, and those of two positions."""
    if op[ALL_VALUES]:
        return array_at(op[ALL_VALUES] + 8 * slot, 1, np.int64)[0], own_v, op[GROUPS] * own_v
    return keys_at, own, op[GROUPS] * own


@inlined
def _weigh_all(op, numbers, state, unit, begin, count, scores_at, mixed_at):  # type: ignore[no-untyped-def]
    """Turn the scores of a unit's rows for `count` positions from `begin` on into weights."""
    t, low, high, first, last, _, _, _ = unit
    rows, heads = last - first, op[HEADS]
    value_wide = (op[VALUE_WIDTH] + LANES - 1) // LANES * LANES
    apart = value_wide + LANES
    for item in range((high - low) * rows):
        r = first + item % rows
        own = array_at(scores_at + 4 * item * SCORES, SCORES, np.float32)
        position, head = state[POSITIONS + t + r // heads], (low + item // rows) * heads + r % heads
        mixed = array_at(mixed_at + 4 * item * apart, apart, np.float32)
        _weigh(op, numbers, own, begin, count, position, head, mixed, value_wide)


@inlined
def _keep_partial(op, unit, mixed, apart):  # type: ignore[no-untyped-def]
    """Write what a unit's rows mix of its positions where `finish_heads` reads it."""
    t, low, high, first, last, _, _, part = unit
    rows, heads = last - first, op[HEADS]
    for item in range((high - low) * rows):
        g, r = low + item // rows, item % rows
        h = (t + (first + r) // heads) * op[GROUPS] * heads + g * heads + (first + r) % heads
        to = array_at(op[PARTIAL] + 4 * (h * op[PARTS] + part) * apart, apart, np.float32)
        for i in range(0, apart, LANES):
            store(to, i, load(mixed, item * apart + i))


@inlined
def _ask(op, numbers, t, low, groups, first, rows, q, mixed):  # type: ignore[no-untyped-def]
    """Write the unit's queries, scaled, as rows of whole vectors, and empty partial results."""
    heads, width = op[HEADS], op[HEAD_WIDTH]
    wide, value_wide = (width + LANES - 1) // LANES * LANES, (op[VALUE_WIDTH] + LANES - 1) // LANES * LANES
    scale = f32(numbers[SCALE])
    for r in range(groups * rows):
        row, g = first + r % rows, low + r // rows
        own, h = t + row // heads, g * heads + row % heads
        x = array_at(op[X] + 4 * (own * op[X_WIDTH] + h * op[X_APART]), width, np.float32)
        for i in range(width):
            q[r * wide + i] = x[i] * scale
        for i in range(width, wide):
            q[r * wide + i] = ZERO
        at = r * (value_wide + LANES)
        for i in range(0, value_wide + LANES, LANES):
            store(mixed, at + i, every(ZERO))
        mixed[at + value_wide] = NOTHING


@inlined
def _attend(row, thread, threads, dtype, elements, size):  # type: ignore[no-untyped-def]
    """Compute partial results of the queries in X over the caches, to PARTIAL (tokens, groups, HEADS, PARTS, …)."""
    op, numbers = array_at(row, FIELDS, np.int64), array_at(row, FIELDS, np.float64)
    state = array_at(op[STATE], SIZE, np.int64)
    work, t = np.int64(0), np.int64(0)
    while t < state[TOKENS]:
        text_end = _text_end(state, t)
        work += (text_end - t) * (state[POSITIONS + text_end - 1] + 1 - _first_seen(op, state[POSITIONS + t]))
        t = text_end
    work *= op[GROUPS] * op[HEADS]
    done, t = np.int64(0), np.int64(0)
    while t < state[TOKENS]:
        text_end = _text_end(state, t)
        rows = (text_end - t) * op[HEADS]
        begin, end = _first_seen(op, state[POSITIONS + t]), state[POSITIONS + text_end - 1] + 1
        pieces, rows_each = _pieces(op, rows)
        parts, each = _parts(op, pieces, end - begin)
        spans, groups_each = _spans(op, pieces, parts)
        for unit in range(spans * parts * pieces):  # in order: a thread's are consecutive in memory
            span, part, piece = unit // (parts * pieces), unit // pieces % parts, unit % pieces
            low, high = span * groups_each, min(op[GROUPS], (span + 1) * groups_each)
            first, last = piece * rows_each, min(rows, (piece + 1) * rows_each)
            start, stop = begin + part * each, min(end, begin + (part + 1) * each)
            own = (high - low) * (last - first) * (stop - start)
            if (2 * done + own) * threads // (2 * work) == thread:
                place = (t, low, high, first, last, start, stop, part)
                _attend_unit(op, numbers, state, place, thread, dtype, elements, size)
            done += own
        t = text_end


@operation
def attend(row, thread, threads):  # type: ignore[no-untyped-def]
    _attend(row, thread, threads, np.float32, _as_numbers, 4)


@operation
def attend_halves(row, thread, threads):  # type: ignore[no-untyped-def]
    _attend(row, thread, threads, np.uint16, _as_numbers, 2)


@operation
def attend_blocks(row, thread, threads):  # type: ignore[no-untyped-def]
    _attend(row, thread, threads, np.int8, _as_blocks, 1)


ATTEND = {"f32": attend, "f16": attend_halves, "q8_0": attend_blocks}  # by type of cache


@inlined
def _merged(op, t, h, parts, first, last, out):  # type: ignore[no-untyped-def]
    """Compute out = columns first … last - 1 of the merged parts of head h of token t."""
    wide = (op[VALUE_WIDTH] + LANES - 1) // LANES * LANES
    size = wide + LANES
    partial = array_at(
        op[PARTIAL] + 4 * (t * op[GROUPS] * op[HEADS] + h) * op[PARTS] * size, op[PARTS] * size, np.float32
    )
    sink = array_at(op[SINKS] + 4 * h, 1, np.float32)[0] if op[SINKS] else NOTHING
    greatest, total = sink, ZERO
    for part in range(parts):
        top = partial[part * size + wide]
        greatest = top if top > greatest else greatest
    if op[SINKS]:
        total = exp(sink - greatest)
    for part in range(parts):
        if partial[part * size + wide + 1] != ZERO:
            total += partial[part * size + wide + 1] * exp(partial[part * size + wide] - greatest)
    inverse = ONE / total
    for i in range(last - first):
        out[i] = ZERO
    for part in range(parts):
        if partial[part * size + wide + 1] != ZERO:
            share = exp(partial[part * size + wide] - greatest) * inverse
            for i in range(last - first):
                out[i] += share * partial[part * size + first + i]


@inlined
def _gated(op, t, h, first, last, out):  # type: ignore[no-untyped-def]
    """Multiply out by gates of columns first … last - 1 of a head, or its only one."""
    gates = array_at(op[GATE] + 4 * (t * op[GATE_WIDTH] + h * op[GATE_APART]), op[VALUE_WIDTH], np.float32)
    if op[GATE_OF_HEAD]:
        gate = softplus(gates[0]) if op[GATE_TYPE] == SOFTPLUS else sigmoid(gates[0])
        for i in range(last - first):
            out[i] *= gate
    elif op[GATE_TYPE] == SOFTPLUS:
        for i in range(last - first):
            out[i] *= softplus(gates[first + i])
    else:
        for i in range(last - first):
            out[i] *= sigmoid(gates[first + i])


@operation
def finish_heads(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT = the merged parts (without PARTIAL: itself), times gates; and as integers.

    Threads share pieces of 256 columns.
    """
    op = array_at(row, FIELDS, np.int64)
    state = array_at(op[STATE], SIZE, np.int64)
    heads, width, size = op[GROUPS] * op[HEADS], op[VALUE_WIDTH], op[OUT_WIDTH]
    rows = heads if op[ROW_EACH] else 1
    used, pieces = heads // rows * width, size // SUPER
    items = state[TOKENS] * rows * pieces
    for item in range(items * thread // threads, items * (thread + 1) // threads):
        t, own, piece = item // (rows * pieces), item // pieces % rows, item % pieces
        place, column = own * op[OUT_APART] + t * size, SUPER * piece
        parts = 0
        if op[PARTIAL]:
            parts = _parts_of(op, state, t)
        while column < min(SUPER * (piece + 1), used):
            h, first = own + column // width, column % width
            last = min(width, first + SUPER * (piece + 1) - column)
            out = array_at(op[OUT] + 4 * (place + column), last - first, np.float32)
            if op[PARTIAL]:
                _merged(op, t, h, parts, first, last, out)
            if op[GATE]:
                _gated(op, t, h, first, last, out)
            column += last - first
        if op[SHORTS]:
            _packed(op, place + SUPER * piece, SUPER)


@inlined
def _parts_of(op, state, t):  # type: ignore[no-untyped-def]
    """Return the number of parts of the positions of the text of token t."""
    first, text_end = t, _text_end(state, t)
    while first > 0 and state[SLOTS + first - 1] == state[SLOTS + t]:
        first -= 1
    pieces, _ = _pieces(op, (text_end - first) * op[HEADS])
    length = state[POSITIONS + text_end - 1] + 1 - _first_seen(op, state[POSITIONS + first])
    return _parts(op, pieces, length)[0]


def max_parts(heads: int) -> int:
    """Return the maximum number of parts of a text's positions, by how many heads have common keys."""
    return max(1, UNITS // -(-heads // ROW_LIMIT))


def scratch_room(groups: int, width: int, value_width: int) -> int:
    """Return the float32 that a thread needs: a block of keys and of values, scores, results and queries of a span."""
    wide, value_wide = (-(-each // LANES) * LANES for each in (width, value_width))
    rows = ROW_LIMIT * groups
    return rows * (SCORES + wide + value_wide + LANES) + ROWS * SCORES + LONGEST * (wide + value_wide) + LANES


def partial_room(heads: int, value_width: int, parts: int, tokens: int) -> int:
    """Return float32 for partial results."""
    return tokens * heads * parts * (-(-value_width // LANES) * LANES + LANES)
