"""Attention of one to eight tokens over the caches of their texts, as operations for `team.run`.

Three operations follow one another, with a barrier after each. `head_operations.prepare_heads` applies the steps on
queries, keys and values, and writes keys and values to the caches. `attend` computes partial results: units of a part
of the positions, of a span of neighbouring groups (heads with common keys), and for each group of up to ROW_LIMIT rows
of queries (of a text's tokens and of its heads); threads share the units. A long text has one span: memory is read in
order, twice as fast as group by group. `finish_heads` merges the parts, and applies gates.

Units do not depend on the number of threads, and so the results do not either. A text's tokens are consecutive in the
pass.
"""

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import LANES, every, every_int, lane_numbers, larger, largest_lane, to_float, where
from quants.kernels.small_blocks import Q8_BYTES, VALUES

from . import activations
from .attention_parts import (
    BLOCK_FLOATS,
    GROUPS,
    LONGEST,
    PARTIAL,
    PARTS,
    SCORES,
    VALUE_WIDTH,
    end_of_text,
    first_seen,
    group_spans,
    parts_of,
    position_parts,
    row_pieces,
)
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
from .context_state import POSITIONS, SIZE, SLOTS, TOKENS
from .dots import SUPER
from .exponential import exp, exp_of_lanes, sigmoid, softplus
from .head_operations import (
    HEAD_WIDTH,
    HEADS,
    OUT,
    OUT_APART,
    OUT_WIDTH,
    SCALE,
    SHORTS,
    STATE,
    X_APART,
    X_WIDTH,
    X,
    pack_columns,
)
from .int16x32 import CACHE_LINE, prefetch, prefetch_later, sum_of_lanes, touch
from .thread_team import FIELDS, array_at, operation

f32 = np.float32
ZERO, ONE, NOTHING = f32(0), f32(1), f32(-np.inf)

# Of `attend`: tables as CACHE, ALL_VALUES 0 where values are the first columns of keys; a float64; float32 (heads,) or
# 0; float32 (heads, TERMS_APART) that are added to the scores, or 0; the room of each thread, in float32
ALL_KEYS, ALL_VALUES, CAP, SLOPES, TERMS, TERMS_APART, SCRATCH, ROOM = 19, 20, 21, 22, 23, 24, 28, 29
# Of `finish_heads`: float32 (heads,) or 0; gates, with their distances by token and by head; their activation; whether
# a head has a single one; heads in separate rows, OUT_APART from one another, or 0
SINKS, GATE, GATE_WIDTH, GATE_APART, GATE_TYPE, GATE_OF_HEAD, ROW_EACH = 19, 20, 21, 22, 23, 24, 25
SIGMOID, SOFTPLUS = 1, 2

STEP = 8  # positions of which all groups are read together; they fit the first cache


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
    first, last = max(first_seen(op, at), begin) - begin, min(at + 1 - begin, count)
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
        text_end = end_of_text(state, t)
        work += (text_end - t) * (state[POSITIONS + text_end - 1] + 1 - first_seen(op, state[POSITIONS + t]))
        t = text_end
    work *= op[GROUPS] * op[HEADS]
    done, t = np.int64(0), np.int64(0)
    while t < state[TOKENS]:
        text_end = end_of_text(state, t)
        rows = (text_end - t) * op[HEADS]
        begin, end = first_seen(op, state[POSITIONS + t]), state[POSITIONS + text_end - 1] + 1
        pieces, rows_each = row_pieces(op, rows)
        parts, each = position_parts(op, pieces, end - begin)
        spans, groups_each = group_spans(op, pieces, parts)
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
            parts = parts_of(op, state, t)
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
            pack_columns(op, place + SUPER * piece, SUPER)
