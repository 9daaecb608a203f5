"""Layers with states, for a few tokens: operations for `team.run`.

A table has the address of a text's states, one per slot (see `context_state`), laid out as in `KVCache.states`: the
last inputs of a convolution (taps - 1, channels), and a matrix for each head, whose rows are padded to whole lanes.
They are changed in place. Tokens of one text are processed in order, so that a thread takes all tokens of a head, or of
some channels, one after another.

Inputs are float32 rows of a token each, as wide as their field gives, and may begin inside of a row.
"""

import numpy as np

from quants.kernels.jit import inlined, inlined_once
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import LANES, every

from . import context_state
from .dots import NUMBERS, SUPER, pack
from .exponential import exp, sigmoid, sigmoid_of_lanes, softplus
from .int16x32 import multiply_add, sum_of_lanes
from .scan import advance_channels, advance_head
from .thread_team import FIELDS, array_at, operation

f32 = np.float32
ZERO, ONE = f32(0), f32(1)

STATE = 2  # address of the pass's state (see `context_state`)
X, X_WIDTH, OUT, OUT_WIDTH = 3, 4, 5, 6  # input and output: addresses, and the width of a token's row
SHORTS, NUMBERS_AT = 7, 8  # where the output goes as integers (see `dots`), or 0
WIDTH = 9  # numbers of a row that count
TABLE = 10  # address of int64, for each slot the address of this layer's states
WEIGHT, BIAS, EPS = 11, 12, 13  # EPS is a float64
HEADS, HEAD_WIDTH, GROUPS, SIZE = 14, 15, 16, 17
GATE, GATE_WIDTH, GATE_BLOCK, GATE_APART, GATE_TYPE = 18, 19, 20, 21, 22  # blocks: see `_place`
SILU, SIGMOID = 1, 2  # types of gates and activations; 0 is none
# of a convolution:
TAPS, ACTIVATION, BEFORE, BEFORE_WIDTH, AFTER, AFTER_WIDTH, X_BLOCK, X_APART = 18, 19, 20, 21, 22, 23, 24, 25
# of a norm:
WEIGHT_WIDTH, CENTERED = 23, 24
# of scans: B and C, with the distance of their groups; the time steps, or 0, and their bounds (float64); A, D; heads of
# X
B, C, B_WIDTH, B_APART, DT, DT_WIDTH, DT_MIN, DT_MAX, A, D, X_HEAD_APART = range(21, 32)


@inlined
def opened(row):  # type: ignore[no-untyped-def]
    """Return an operation's fields, as integers and as float64, and the pass's state."""
    op = array_at(row, FIELDS, np.int64)
    return op, array_at(row, FIELDS, np.float64), array_at(op[STATE], context_state.SIZE, np.int64)


@inlined_once
def row_at(op, field, t):  # type: ignore[no-untyped-def]
    """Return the address of token t's row of an array, whose address and width are in two neighbouring fields."""
    return op[field] + 4 * t * op[field + 1]


@inlined
def state_at(op, run, t):  # type: ignore[no-untyped-def]
    """Return the address of the layer's states of token t's text."""
    return array_at(op[TABLE], context_state.MAX_TOKENS, np.int64)[run[context_state.SLOTS + t]]


@inlined
def _place(c, block, apart):  # type: ignore[no-untyped-def]
    """Return where column c is in a row of which only the first `block` of each `apart` columns count; block 0: all
    do.
    """
    return c if block == 0 else c // block * apart + c % block


@inlined
def share_of(op, width, thread, threads):  # type: ignore[no-untyped-def]
    """Return the columns of a thread: whole pieces of `pack`, or of a few cache lines; the last past the width."""
    unit = SUPER if op[SHORTS] else 4 * LANES
    pieces = (width + unit - 1) // unit
    return unit * (pieces * thread // threads), unit * (pieces * (thread + 1) // threads)


@inlined
def packed(op, out, t, first, last):  # type: ignore[no-untyped-def]
    """Pack columns first … last of token t's output as integers, both multiples of 256."""
    size = op[OUT_WIDTH]
    shorts = array_at(op[SHORTS] + 2 * t * size, size, np.int16)
    numbers = array_at(op[NUMBERS_AT] + 4 * (t * size // SUPER * NUMBERS), size // SUPER * NUMBERS, np.float32)
    pack(out, first, last - first, shorts, numbers, first // SUPER * NUMBERS)


@inlined
def _convolved(op, run, t):  # type: ignore[no-untyped-def]
    """Return the data of a token's convolution: channels' weights and bias, the state, input, output, factors."""
    channels, kept = op[WIDTH], op[TAPS] - 1
    filled = (channels + LANES - 1) // LANES * LANES
    weight, bias = array_at(op[WEIGHT], (kept + 1) * filled, np.float32), array_at(op[BIAS], filled, np.float32)
    tail = array_at(state_at(op, run, t), kept * channels, np.float32)
    x = array_at(row_at(op, X, t), op[X_WIDTH], np.float32)
    out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
    before = array_at(row_at(op, BEFORE, t), channels, np.float32)
    after = array_at(row_at(op, AFTER, t), channels, np.float32)
    return kept, filled, weight, bias, tail, x, out, before, after


@inlined
def _convolve_lanes(op, run, t, first, stop):  # type: ignore[no-untyped-def]
    """Convolve channels first … stop of a token, whole lanes."""
    kept, filled, weight, bias, tail, x, out, before, after = _convolved(op, run, t)
    channels = op[WIDTH]
    for c in range(first, stop, LANES):
        new, total = load(x, _place(c, op[X_BLOCK], op[X_APART])), load(bias, c)
        if op[BEFORE]:
            new *= load(before, c)
        for i in range(kept):
            known = load(tail, i * channels + c)
            total = multiply_add(known, load(weight, i * filled + c), total)
            if i:
                store(tail, (i - 1) * channels + c, known)
        total = multiply_add(new, load(weight, kept * filled + c), total)
        if kept:
            store(tail, (kept - 1) * channels + c, new)
        if op[ACTIVATION]:
            total *= sigmoid_of_lanes(total)
        if op[AFTER]:
            total *= load(after, c)
        store(out, c, total)


@inlined
def _convolve_rest(op, run, t, first, stop):  # type: ignore[no-untyped-def]
    """Convolve channels first … stop of a token, fewer than lanes."""
    kept, filled, weight, bias, tail, x, out, before, after = _convolved(op, run, t)
    channels = op[WIDTH]
    for c in range(first, stop):
        value, total = x[_place(c, op[X_BLOCK], op[X_APART])], bias[c]
        if op[BEFORE]:
            value *= before[c]
        for i in range(kept):
            total += tail[i * channels + c] * weight[i * filled + c]
            if i:
                tail[(i - 1) * channels + c] = tail[i * channels + c]
        total += value * weight[kept * filled + c]
        if kept:
            tail[(kept - 1) * channels + c] = value
        if op[ACTIVATION]:
            total *= sigmoid(total)
        out[c] = total * after[c] if op[AFTER] else total


@operation
def convolve(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute the causal convolution of each channel with its TAPS latest inputs, and an activation.

    WEIGHT: (TAPS, channels), BIAS: (channels,), both padded to whole lanes. BEFORE, AFTER: factors of inputs and
    outputs, or 0. The state: the inputs of the TAPS - 1 tokens before, (TAPS - 1, channels).
    """
    op, _, run = opened(row)
    channels = op[WIDTH]
    first, last = share_of(op, channels, thread, threads)
    stop = min(last, channels)
    whole = max(first, stop // LANES * LANES)
    for t in range(run[context_state.TOKENS]):
        _convolve_lanes(op, run, t, first, whole)
        _convolve_rest(op, run, t, whole, stop)
        if op[SHORTS] and first < last:
            packed(op, array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32), t, first, last)


@inlined
def moments(x, start, width, centered):  # type: ignore[no-untyped-def]
    """Return mean (0 unless `centered`) and mean square about it of x[start : start + width]."""
    whole, mean = width // LANES * LANES, f32(0)
    if centered:
        a = every(ZERO)
        for i in range(0, whole, LANES):
            a += load(x, start + i)
        total = sum_of_lanes(a)
        for i in range(whole, width):
            total += x[start + i]
        mean = total / f32(width)
    a = every(ZERO)
    for i in range(0, whole, LANES):
        off = load(x, start + i) - mean
        a = multiply_add(off, off, a)
    square = sum_of_lanes(a)
    for i in range(whole, width):
        square += (x[start + i] - mean) * (x[start + i] - mean)
    return mean, square / f32(width)


@inlined
def _gated(op, out, t, first, last):  # type: ignore[no-untyped-def]
    """Multiply columns first … last of an output by an activation of the gate."""
    gate = array_at(row_at(op, GATE, t), op[GATE_WIDTH], np.float32)
    whole = first + (last - first) // LANES * LANES
    for c in range(first, whole, LANES):
        g = load(gate, _place(c, op[GATE_BLOCK], op[GATE_APART]))
        factor = sigmoid_of_lanes(g)
        store(out, c, load(out, c) * (factor * g if op[GATE_TYPE] == SILU else factor))
    for c in range(whole, last):
        value = gate[_place(c, op[GATE_BLOCK], op[GATE_APART])]
        out[c] *= sigmoid(value) * (value if op[GATE_TYPE] == SILU else ONE)


@operation
def norm_groups(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT = norm of each of X's GROUPS, times WEIGHT (and + BIAS), times an activation of the gate, if there is
    one.

    WEIGHT: WEIGHT_WIDTH numbers, as many as X has or one group has; 0: no norm. CENTERED: a layer norm. With a norm X
    is not OUT.
    """
    op, numbers, run = opened(row)
    width, centered = op[WIDTH], op[CENTERED] != 0
    first, last = share_of(op, width, thread, threads)
    stop, group = min(last, width), width // op[GROUPS]
    weight = array_at(op[WEIGHT], op[WEIGHT_WIDTH], np.float32)
    bias = array_at(op[BIAS], op[WEIGHT_WIDTH], np.float32)
    for t in range(run[context_state.TOKENS]):
        x = array_at(row_at(op, X, t), op[X_WIDTH], np.float32)
        out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
        if op[WEIGHT] == 0:
            for c in range(first, stop):
                out[c] = x[c]
        else:
            for start in range(first // group * group, stop, group):
                mean, square = moments(x, start, group, centered)
                scale = f32(1.0 / np.sqrt(np.float64(square) + numbers[EPS]))
                shift = 0 if op[WEIGHT_WIDTH] == width else start
                begin, end = max(first, start), min(stop, start + group)
                for c in range(begin, end):
                    out[c] = (x[c] - mean) * scale * weight[c - shift]
                if op[BIAS]:
                    for c in range(begin, end):
                        out[c] += bias[c - shift]
        if op[GATE] and first < stop:
            _gated(op, out, t, first, stop)
        if op[SHORTS] and first < last:
            packed(op, out, t, first, last)


@inlined
def _advance_rest(x, x_at, width, dt, decay, write, read, state, own, y, y_at):  # type: ignore[no-untyped-def]
    """Compute `advance_head` for the columns after its whole lanes."""
    stride, whole = (width + LANES - 1) // LANES * LANES, width // LANES * LANES
    for i in range(whole, width):
        total, value = f32(0), x[x_at + i] * dt
        for s in range(write.size):
            kept = state[own + s * stride + i] * decay + value * write[s]
            state[own + s * stride + i] = kept
            total += kept * read[s]
        y[y_at + i] = total


@operation
def scan_heads(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute Mamba-2's scan: a state (SIZE, HEAD_WIDTH) for each head, GROUPS of neighbouring heads with B and C in
    common.

    The time step is the softplus of DT + BIAS between bounds, or 1 without DT. A, D: by head; D may be 0, and GATE, by
    whose silu the result is multiplied.
    """
    op, numbers, run = opened(row)
    heads, width, size = op[HEADS], op[HEAD_WIDTH], op[SIZE]
    matrix, share = size * ((width + LANES - 1) // LANES * LANES), heads // op[GROUPS]
    a, d = array_at(op[A], heads, np.float32), array_at(op[D], heads, np.float32)
    bias = array_at(op[BIAS], heads, np.float32)
    low, high = f32(numbers[DT_MIN]), f32(numbers[DT_MAX])
    for h in range(heads * thread // threads, heads * (thread + 1) // threads):
        near = 4 * op[B_APART] * (h // share)
        for t in range(run[context_state.TOKENS]):
            x = array_at(row_at(op, X, t), op[X_WIDTH], np.float32)
            out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
            write = array_at(op[B] + near + 4 * t * op[B_WIDTH], size, np.float32)
            read = array_at(op[C] + near + 4 * t * op[B_WIDTH], size, np.float32)
            step = ONE
            if op[DT]:
                step = array_at(row_at(op, DT, t), op[DT_WIDTH], np.float32)[h]
                step = softplus(step + bias[h] if op[BIAS] else step)
                step = low if step < low else step  # NaN stays
                step = high if step > high else step
            state = array_at(state_at(op, run, t), heads * matrix, np.float32)
            at, to = h * op[X_HEAD_APART], h * width
            decay = exp(step * a[h])
            advance_head(x, at, width, step, decay, write, read, state, h * matrix, out, to)
            _advance_rest(x, at, width, step, decay, write, read, state, h * matrix, out, to)
            if op[D]:
                for i in range(width):
                    out[to + i] += x[at + i] * d[h]
            if op[GATE]:
                gate = array_at(row_at(op, GATE, t), op[GATE_WIDTH], np.float32)
                for i in range(width):
                    out[to + i] *= gate[to + i] * sigmoid(gate[to + i])


@operation
def scan_channels(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute Mamba's scan, its D and its gate's silu: a state (SIZE, channels) of decays (SIZE, channels).

    A, D and the state are padded to whole lanes, as rows of X, DT and OUT are. DT: before its softplus. GATE: rows with
    at least as many numbers.
    """
    op, _, run = opened(row)
    width, size = op[WIDTH], op[SIZE]
    channels = (width + LANES - 1) // LANES * LANES
    a, d = array_at(op[A], size * channels, np.float32), array_at(op[D], channels, np.float32)
    first, last = share_of(op, width, thread, threads)
    stop = min(last, channels)
    for t in range(run[context_state.TOKENS]):
        x = array_at(row_at(op, X, t), op[X_WIDTH], np.float32)
        out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
        dt = array_at(row_at(op, DT, t), op[DT_WIDTH], np.float32)
        gate = array_at(row_at(op, GATE, t), op[GATE_WIDTH], np.float32)
        write = array_at(op[B] + 4 * t * op[B_WIDTH], size, np.float32)
        read = array_at(op[C] + 4 * t * op[B_WIDTH], size, np.float32)
        state = array_at(state_at(op, run, t), size * channels, np.float32)
        for i in range(first, stop):
            dt[i] = softplus(dt[i])
        for i in range(first, stop, LANES):
            total = advance_channels(a, load(dt, i), load(x, i), write, read, state, i, channels)
            g = load(gate, i)
            store(out, i, multiply_add(load(x, i), load(d, i), total) * (g * sigmoid_of_lanes(g)))
        if op[SHORTS] and first < last:
            packed(op, out, t, first, last)
