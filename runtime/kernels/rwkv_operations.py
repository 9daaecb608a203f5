"""RWKV 6 and 7 for a few tokens: operations for `team.run`, in addition to those of `state_operations`.

Heads are whole lanes wide. Rows have the layer's width in memory, unless a field gives another.
"""

import numpy as np

from quants.kernels.jit import inlined

from . import context_state
from .exponential import exp, sigmoid, tanh
from .scan import wkv7_head, wkv_head
from .state_operations import (
    BIAS,
    GATE,
    GATE_WIDTH,
    GROUPS,
    HEADS,
    OUT,
    OUT_WIDTH,
    SHORTS,
    SIZE,
    WEIGHT,
    WIDTH,
    X_WIDTH,
    X,
    moments,
    opened,
    packed,
    row_at,
    share_of,
    state_at,
)
from .thread_team import array_at, operation

f32 = np.float32
ZERO, ONE = f32(0), f32(1)
HEAD_EPS = 64e-5  # of the norm of a head's output
MIN_LENGTH = f32(1e-12)  # of a key, as a divisor
SLOWEST = f32(-np.exp(-0.5))  # the logarithm of the minimum factor of RWKV 7's states

# of mixtures: their number, their shares (COUNT, WIDTH), the additions by token, or 0, whether the row is kept
COUNT, ADDED, ADDED_WIDTH, KEEPS = 18, 19, 20, 21
ACTIVATION, SCALE = 22, 23  # of `activate`; SCALE is a float64
TANH, LOGISTIC, SQUARED_RELU = 1, 2, 3
# of heads: addresses of rows next to X, the receptances; K and V of RWKV 6 are as wide as KEY_WIDTH
K, V, W, SCRATCH, KEY_WIDTH, FIRST, FIRST_VALUES, A, VALUE_GATE, KEY_SCALE, KEY_RATE = range(20, 31)


@inlined
def _row_before(op, run, t):  # type: ignore[no-untyped-def]
    """Return the address of the row before token t in its text: an input of this run, or the layer's kept row."""
    slot = run[context_state.SLOTS + t]
    for other in range(t - 1, -1, -1):
        if run[context_state.SLOTS + other] == slot:
            return row_at(op, X, other)
    return state_at(op, run, t)


@operation
def mix_shifted(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute COUNT mixtures of each row with the one before it in its text: row + share * (the one before - row).

    Shares are WEIGHT (COUNT, WIDTH), plus ADDED (COUNT, MAX_TOKENS, ADDED_WIDTH). OUT: (COUNT, MAX_TOKENS, OUT_WIDTH),
    also as integers. KEEPS: rows are kept for the next tokens.
    """
    op, _, run = opened(row)
    width, count, size = op[WIDTH], op[COUNT], op[OUT_WIDTH]
    first, last = share_of(op, width, thread, threads)
    stop, tokens = min(last, width), run[context_state.TOKENS]
    for t in range(tokens):
        x = array_at(row_at(op, X, t), width, np.float32)
        before = array_at(_row_before(op, run, t), width, np.float32)
        for j in range(count):
            number = j * context_state.MAX_TOKENS + t
            out = array_at(row_at(op, OUT, number), size, np.float32)
            share = array_at(op[WEIGHT] + 4 * j * width, width, np.float32)
            if op[ADDED]:
                more = array_at(row_at(op, ADDED, number), width, np.float32)
                for c in range(first, stop):
                    out[c] = x[c] + (before[c] - x[c]) * (share[c] + more[c])
            else:
                for c in range(first, stop):
                    out[c] = x[c] + (before[c] - x[c]) * share[c]
            if first < last:
                packed(op, out, number, first, last)
    if op[KEEPS]:
        for t in range(tokens):
            x = array_at(row_at(op, X, t), width, np.float32)
            kept = array_at(state_at(op, run, t), width, np.float32)
            for c in range(first, stop):
                kept[c] = x[c]


@operation
def activate(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT = an activation of X (0: X itself), also as integers. X may be OUT."""
    op, _, run = opened(row)
    first, last = share_of(op, op[WIDTH], thread, threads)
    stop = min(last, op[WIDTH])
    for t in range(run[context_state.TOKENS]):
        x = array_at(row_at(op, X, t), op[X_WIDTH], np.float32)
        out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
        if op[ACTIVATION] == TANH:
            for c in range(first, stop):
                out[c] = tanh(x[c])
        elif op[ACTIVATION] == LOGISTIC:
            for c in range(first, stop):
                out[c] = sigmoid(x[c])
        elif op[ACTIVATION] == SQUARED_RELU:
            for c in range(first, stop):
                value = ZERO if x[c] < ZERO else x[c]  # NaN stays
                out[c] = value * value
        else:
            for c in range(first, stop):
                out[c] = x[c]
        if op[SHORTS] and first < last:
            packed(op, out, t, first, last)


@operation
def add_gated(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT = SCALE * (OUT + X * sigmoid(GATE)); without a gate OUT + X."""
    op, numbers, run = opened(row)
    first, last = share_of(op, op[WIDTH], thread, threads)
    stop, scale = min(last, op[WIDTH]), f32(numbers[SCALE])
    for t in range(run[context_state.TOKENS]):
        x = array_at(row_at(op, X, t), op[X_WIDTH], np.float32)
        out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
        gate = array_at(row_at(op, GATE, t), op[GATE_WIDTH], np.float32)
        if op[GATE]:
            for c in range(first, stop):
                out[c] = (out[c] + x[c] * sigmoid(gate[c])) * scale
        else:
            for c in range(first, stop):
                out[c] = (out[c] + x[c]) * scale


@inlined
def _normed_head(op, out, at, size):  # type: ignore[no-untyped-def]
    """Apply the layer norm of a head's output, in place, if there is one."""
    if op[WEIGHT]:
        weight = array_at(op[WEIGHT] + 4 * at, size, np.float32)
        mean, square = moments(out, at, size, True)
        scale = f32(1.0 / np.sqrt(np.float64(square) + HEAD_EPS))
        for i in range(size):
            out[at + i] = (out[at + i] - mean) * scale * weight[i]
        if op[BIAS]:
            bias = array_at(op[BIAS] + 4 * at, size, np.float32)
            for i in range(size):
                out[at + i] += bias[i]


@operation
def wkv6_step(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute RWKV 6's heads, from W before its exponentials to the gated output.

    GROUPS of neighbouring heads share a key and a value. FIRST (HEADS, SIZE): how a token reads itself; 0: of layers
    converted from a Qwen's, without a norm. SCRATCH: rows of 2 * X_WIDTH.
    """
    op, _, run = opened(row)
    heads, size, tokens = op[HEADS], op[SIZE], run[context_state.TOKENS]
    first = array_at(op[FIRST], heads * size, np.float32)
    root = f32(1.0 / np.sqrt(np.float64(size)))
    for h in range(heads * thread // threads, heads * (thread + 1) // threads):
        at, group = h * size, h // (heads // op[GROUPS]) * size
        for t in range(tokens):
            start = 4 * (t * op[X_WIDTH] + at)
            r, w = array_at(op[X] + start, size, np.float32), array_at(op[W] + start, size, np.float32)
            k = array_at(op[K] + 4 * (t * op[KEY_WIDTH] + group), size, np.float32)
            v = array_at(op[V] + 4 * (t * op[KEY_WIDTH] + group), size, np.float32)
            own_k = array_at(op[SCRATCH] + 4 * (2 * t * op[X_WIDTH] + at), size, np.float32)
            own_r = array_at(op[SCRATCH] + 4 * ((2 * t + 1) * op[X_WIDTH] + at), size, np.float32)
            out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
            gate = array_at(row_at(op, GATE, t) + 4 * at, size, np.float32)
            state = array_at(state_at(op, run, t) + 4 * at * size, size * size, np.float32)
            score = ZERO
            for i in range(size):
                w[i] = exp(-exp(w[i]))
            if op[FIRST]:
                for i in range(size):
                    own_k[i], own_r[i] = k[i], r[i]
                    score += r[i] * k[i] * first[at + i]
            else:
                for i in range(size):
                    own_k[i], own_r[i] = k[i] * (ONE - w[i]), r[i] * w[i]
                    score += r[i] * own_k[i]
            wkv_head(v, 0, size, own_r, own_k, w, state, 0, out, at)
            for i in range(size):
                out[at + i] += score * v[i]
            if op[FIRST]:
                _normed_head(op, out, at, size)
                for i in range(size):
                    out[at + i] *= gate[i] * sigmoid(gate[i])
            else:
                for i in range(size):
                    out[at + i] *= root * sigmoid(gate[i])


@operation
def wkv7_step(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute RWKV 7's heads, from W, A and VALUE_GATE before their sigmoids to the gated output.

    FIRST_VALUES: the first layer's, which values are mixed with, or 0, and then VALUE_GATE is not read. KEY_SCALE,
    KEY_RATE, FIRST: the tensors k_k, k_a and r_k. GATE: a factor, or 0. W, A, K and V are overwritten.
    """
    op, _, run = opened(row)
    heads, size, width = op[HEADS], op[SIZE], op[X_WIDTH]
    for h in range(heads * thread // threads, heads * (thread + 1) // threads):
        at = h * size
        scale = array_at(op[KEY_SCALE] + 4 * at, size, np.float32)
        rate = array_at(op[KEY_RATE] + 4 * at, size, np.float32)
        first = array_at(op[FIRST] + 4 * at, size, np.float32)
        for t in range(run[context_state.TOKENS]):
            start = 4 * (t * width + at)
            r, k = array_at(op[X] + start, size, np.float32), array_at(op[K] + start, size, np.float32)
            v, w = array_at(op[V] + start, size, np.float32), array_at(op[W] + start, size, np.float32)
            a, key = array_at(op[A] + start, size, np.float32), array_at(op[SCRATCH] + start, size, np.float32)
            out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
            state = array_at(state_at(op, run, t) + 4 * at * size, size * size, np.float32)
            if op[FIRST_VALUES]:
                early = array_at(op[FIRST_VALUES] + start, size, np.float32)
                mixed = array_at(op[VALUE_GATE] + start, size, np.float32)
                for i in range(size):
                    v[i] += (early[i] - v[i]) * sigmoid(mixed[i])
            for i in range(size):
                w[i], a[i], key[i] = exp(SLOWEST * sigmoid(w[i])), sigmoid(a[i]), k[i] * scale[i]
            length = np.sqrt(moments(key, 0, size, False)[1] * f32(size))
            inverse, score = ONE / (length if length > MIN_LENGTH else MIN_LENGTH), ZERO
            for i in range(size):
                k[i] *= ONE + (a[i] - ONE) * rate[i]
                a[i] *= key[i] * inverse
                key[i] *= -inverse
                score += r[i] * k[i] * first[i]
            wkv7_head(v, 0, size, r, k, w, key, a, state, 0, out, at)
            _normed_head(op, out, at, size)
            for i in range(size):
                out[at + i] += score * v[i]
            if op[GATE]:
                gate = array_at(row_at(op, GATE, t) + 4 * at, size, np.float32)
                for i in range(size):
                    out[at + i] *= gate[i]
