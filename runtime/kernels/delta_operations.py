"""Gated delta nets for a few tokens: operations for `team.run`, in addition to those of `state_operations`."""

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.lanes import LANES

from . import context_state
from .exponential import exp, sigmoid, softplus
from .scan import delta_head
from .state_operations import (
    BIAS,
    GROUPS,
    HEAD_WIDTH,
    HEADS,
    OUT,
    OUT_WIDTH,
    SIZE,
    X_WIDTH,
    X,
    moments,
    opened,
    row_at,
    state_at,
)
from .thread_team import array_at, operation

f32 = np.float32
ZERO, ONE = f32(0), f32(1)
MIN_SQUARE = f32(1e-6)  # added to the squared length of a key or a query

K, V = 18, 19  # addresses next to X, the queries, in rows of equal width
BETA, BETA_WIDTH, STEPS, STEPS_WIDTH = 20, 21, 22, 23
BLOCK, APART = 24, 25  # of heads in BETA and STEPS: so many are neighbours, so far from the next ones
A, STEP_TYPE, BOUND, TURNS = 26, 27, 28, 29
BY_HEAD, BY_CHANNEL, BOUNDED = 0, 1, 2  # types of steps


@inlined
def _decay(steps, bias, bias_at, a, step_type, bound):  # type: ignore[no-untyped-def]
    """Turn steps into the decay factors of a state."""
    for i in range(steps.size):
        value = steps[i] + bias[bias_at + i]
        steps[i] = exp(bound * sigmoid(abs(a) * value)) if step_type == BOUNDED else exp(a * softplus(value))


@inlined
def _delta_rest(v, v_at, width, q, k, q_scale, k_scale, decay, apart, beta, state, own, y, y_at):  # type: ignore[no-untyped-def]
    """Compute `delta_head` for the columns after its whole lanes."""
    stride = (width + LANES - 1) // LANES * LANES
    for i in range(width // LANES * LANES, width):
        answer, total = ZERO, ZERO
        for s in range(k.size):
            answer += state[own + s * stride + i] * decay[s * apart] * k[s]
        error = (v[v_at + i] - answer * k_scale) * (beta * k_scale)
        for s in range(k.size):
            kept = state[own + s * stride + i] * decay[s * apart] + error * k[s]
            state[own + s * stride + i] = kept
            total += kept * q[s]
        y[y_at + i] = total * q_scale


@operation
def delta_step(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute the gated delta rule, with queries and keys scaled to length one, and queries by the root of SIZE.

    STEP_TYPE: BY_HEAD has one of STEPS for each head, e^(A * softplus(step + BIAS)) its decay; BY_CHANNEL one for each
    channel of a head's keys; BOUNDED the same with e^(BOUND * sigmoid(|A| * (step + BIAS))). Heads that share one of
    GROUPS keys are neighbours, or with TURNS as far apart as there are keys.
    """
    op, numbers, run = opened(row)
    heads, width, size, groups = op[HEADS], op[HEAD_WIDTH], op[SIZE], op[GROUPS]
    matrix, scale = size * ((width + LANES - 1) // LANES * LANES), f32(1.0 / np.sqrt(np.float64(size)))
    each = 1 if op[STEP_TYPE] == BY_HEAD else size
    a, bias = array_at(op[A], heads, np.float32), array_at(op[BIAS], heads * each, np.float32)
    for h in range(heads * thread // threads, heads * (thread + 1) // threads):
        group = h % groups if op[TURNS] else h // (heads // groups)
        place = h // op[BLOCK] * op[APART] + h % op[BLOCK]
        for t in range(run[context_state.TOKENS]):
            before = 4 * (t * op[X_WIDTH] + group * size)
            q, k = array_at(op[X] + before, size, np.float32), array_at(op[K] + before, size, np.float32)
            v = array_at(op[V] + 4 * t * op[X_WIDTH], heads * width, np.float32)
            out = array_at(row_at(op, OUT, t), op[OUT_WIDTH], np.float32)
            decay = array_at(row_at(op, STEPS, t) + 4 * (place if each == 1 else h * size), each, np.float32)
            _decay(decay, bias, h * each, a[h], op[STEP_TYPE], f32(numbers[BOUND]))
            beta = sigmoid(array_at(row_at(op, BETA, t), 1, np.float32)[place])
            q_scale = scale / np.sqrt(moments(q, 0, size, False)[1] * f32(size) + MIN_SQUARE)
            k_scale = ONE / np.sqrt(moments(k, 0, size, False)[1] * f32(size) + MIN_SQUARE)
            state, apart = array_at(state_at(op, run, t), heads * matrix, np.float32), int(each > 1)
            own, at = h * matrix, h * width
            delta_head(v, at, width, q, k, q_scale, k_scale, decay, apart, beta, state, own, out, at)
            _delta_rest(v, at, width, q, k, q_scale, k_scale, decay, apart, beta, state, own, out, at)
