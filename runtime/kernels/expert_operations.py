"""A mixture of experts for a few tokens: operations for `team.run` around the products of `dots`.

A token's experts are its places: place token * USED + rank. Every thread chooses for itself, which takes less time than
waiting for another one; its choice is at CHOICE + APART * thread, as `dots` reads it. The rows of an expert are shared
by threads in the same way for all experts, so that a thread can add up its own columns of the last products without a
barrier.
"""

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import LANES, every

from .activations import QUICK, gelu_of, gelu_tanh_of
from .context_state import MAX_TOKENS
from .dots import NUMBERS, SUPER, pack
from .exponential import exp, sigmoid, softplus, tanh
from .thread_team import FIELDS, array_at, operation

f32 = np.float32
ZERO, ONE = f32(0), f32(1)
MIN_SUM = f32(1e-20)  # of weights that are rescaled, as in `runtime.experts`

STATE = 2  # address of int64: the number of tokens
CHOICE, APART, USED = 3, 4, 5  # address of the first thread's choice; bytes between those of two; experts of a token
X, X_WIDTH, OUT, OUT_WIDTH, WIDTH = 6, 7, 8, 9, 10  # input and output, widths of their rows; the numbers that count
SCALE = 11  # float64
# of `choose`: X are the router's logits
EXPERTS, SCORING, NORMALIZES = 12, 13, 14
CORRECTION, OF_EXPERT = 15, 16  # addresses or 0: the selection bias of scores; factors of experts' weights
GROUPS, GROUPS_USED = 17, 18  # 0, 0 if all experts are one group
CAP = 19  # float64: of the logits, 0 for none
# of `activate`: X and Y are (places, WIDTH), Y and CHOICE may be 0
Y, Y_WIDTH, SHORTS, NUMBERS_AT, ACTIVATION, LIMIT, CLAMPS = range(12, 19)  # LIMIT: float64, infinite for none
# of `add_up`
ADDS, WEIGHS, SHARED, SHARED_WIDTH, SHARED_GATE, GATE_WIDTH = range(12, 18)

SOFTMAX, SOFTMAX_OF_TOP, SIGMOID, SQRT_SOFTPLUS = range(4)
SCORINGS = {"softmax": SOFTMAX, "softmax_of_top": SOFTMAX_OF_TOP, "sigmoid": SIGMOID, "sqrt_softplus": SQRT_SOFTPLUS}
SILU, GELU, GELU_TANH, RELU, RELU2, SWIGLU_OAI, NO_ACTIVATION = range(7)
ACTIVATIONS = {
    "silu": SILU,
    "gelu": GELU,
    "gelu_tanh": GELU_TANH,
    "relu": RELU,
    "relu2": RELU2,
    "swiglu_oai": SWIGLU_OAI,
}
CLAMPS_GATE, CLAMPS_ACTIVATED = 1, 2  # what LIMIT bounds in addition to the other factor


def choice_bytes(experts: int, used: int, groups: int) -> int:
    """Return the size of one thread's choice with the scratch of `choose`, a multiple of a cache line's."""
    size = 8 * (4 * MAX_TOKENS * used) + 4 * (2 * experts + groups)
    return -(-size // 128) * 128


@inlined
def _weights_at(op, thread):  # type: ignore[no-untyped-def]
    """Return where a thread's choice has the weights of places, float32."""
    return op[CHOICE] + op[APART] * thread + 8 * 3 * MAX_TOKENS * op[USED]


@inlined
def _comes_before(a, b):  # type: ignore[no-untyped-def]
    """Return whether a score ranks before another, in descending order; NaN comes last, as in numpy."""
    return a > b or (a == a and b != b)


@inlined
def _exponentials(x, start, count):  # type: ignore[no-untyped-def]
    """Turn x[start : start + count] into probabilities."""
    top, total = x[start], 0.0
    for i in range(start, start + count):
        top = x[i] if x[i] > top else top
    for i in range(start, start + count):
        x[i] = exp(x[i] - top)
    for i in range(start, start + count):
        total += np.float64(x[i])
    for i in range(start, start + count):
        x[i] = f32(np.float64(x[i]) / total)


@inlined
def _score(op, cap, scores, logits):  # type: ignore[no-untyped-def]
    count, scoring = op[EXPERTS], op[SCORING]
    for i in range(count):
        scores[i] = logits[i]
    if cap > ZERO:
        for i in range(count):
            scores[i] = cap * tanh(scores[i] * (ONE / cap))
    if scoring == SOFTMAX:
        _exponentials(scores, 0, count)
    elif scoring == SIGMOID:
        for i in range(count):
            scores[i] = sigmoid(scores[i])
    elif scoring == SQRT_SOFTPLUS:
        for i in range(count):
            scores[i] = np.sqrt(softplus(scores[i]))


@inlined
def _leave_best_groups(op, ranked, values):  # type: ignore[no-untyped-def]
    """Set scores outside the best groups to -inf. A group counts as its best expert or, with a correction, its best
    two.

    values: scratch for a number of each group. Groups with NaN come last.
    """
    groups, size = op[GROUPS], op[EXPERTS] // op[GROUPS]
    for g in range(groups):
        first, second, lost = f32(-np.inf), f32(-np.inf), ZERO
        for i in range(size * g, size * (g + 1)):
            value = ranked[i]
            lost = value if value != value else lost
            if value > first:
                first, second = value, first
            elif value > second:
                second = value
        values[g] = (second + first if op[CORRECTION] and size > 1 else first) + lost
    for g in range(groups):
        before = 0
        for other in range(groups):
            if _comes_before(values[other], values[g]) or (other < g and not _comes_before(values[g], values[other])):
                before += 1
        if before >= op[GROUPS_USED]:
            for i in range(size * g, size * (g + 1)):
                ranked[i] = f32(-np.inf)


@inlined
def _find_best(ranked, count, ids, start, used):  # type: ignore[no-untyped-def]
    """Set ids[start : start + used] to the best of the scores, the first of equal ones first."""
    kept = 0
    for i in range(count):
        at = kept
        while at > 0 and _comes_before(ranked[i], ranked[ids[start + at - 1]]):
            at -= 1
        if at < used:
            kept = min(kept + 1, used)
            for k in range(kept - 1, at, -1):
                ids[start + k] = ids[start + k - 1]
            ids[start + at] = i


@inlined
def _weigh(op, scale, scores, ids, weights, start):  # type: ignore[no-untyped-def]
    used = op[USED]
    of_expert = array_at(op[OF_EXPERT], op[EXPERTS], np.float32)
    for i in range(start, start + used):
        weights[i] = scores[ids[i]]
    if op[SCORING] == SOFTMAX_OF_TOP:
        _exponentials(weights, start, used)
    elif op[NORMALIZES]:
        total = ZERO
        for i in range(start, start + used):
            total += weights[i]
        total = MIN_SUM if total < MIN_SUM else total
        for i in range(start, start + used):
            weights[i] /= total
    for i in range(start, start + used):
        factor = of_expert[ids[i]] if op[OF_EXPERT] else ONE
        weights[i] = weights[i] * factor * scale


@operation
def choose(row, thread, threads):  # type: ignore[no-untyped-def]
    """Choose the experts of each token and their weights, from a router's logits; each thread has its own copy of
    them.
    """
    op, numbers = array_at(row, FIELDS, np.int64), array_at(row, FIELDS, np.float64)
    tokens, used, count = array_at(op[STATE], 1, np.int64)[0], op[USED], op[EXPERTS]
    places, at = MAX_TOKENS * used, op[CHOICE] + op[APART] * thread
    ids, order = array_at(at, places, np.int64), array_at(at + 8 * places, places, np.int64)
    sources = array_at(at + 16 * places, places, np.int64)
    weights = array_at(_weights_at(op, thread), places, np.float32)
    scores = array_at(at + 32 * places, count, np.float32)
    ranked = array_at(at + 32 * places + 4 * count, count, np.float32)
    values = array_at(at + 32 * places + 8 * count, op[GROUPS], np.float32)
    correction = array_at(op[CORRECTION], count, np.float32)
    for t in range(tokens):
        _score(op, f32(numbers[CAP]), scores, array_at(op[X] + 4 * t * op[X_WIDTH], count, np.float32))
        for i in range(count):
            ranked[i] = scores[i] + correction[i] if op[CORRECTION] else scores[i]
        if op[GROUPS] > op[GROUPS_USED]:
            _leave_best_groups(op, ranked, values)
        _find_best(ranked, count, ids, used * t, used)
        _weigh(op, f32(numbers[SCALE]), scores, ids, weights, used * t)
    for place in range(tokens * used):
        at = place
        while at > 0 and ids[order[at - 1]] > ids[place]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = place
    for i in range(tokens * used):
        sources[i] = order[i] // used


@inlined
def _activate(x, count, activation):  # type: ignore[no-untyped-def]
    if activation == SILU:
        for i in range(count):
            x[i] = x[i] * sigmoid(x[i])
    elif activation == GELU:
        for i in range(count):
            x[i] = gelu_of(x[i])
    elif activation == GELU_TANH:
        for i in range(count):
            x[i] = gelu_tanh_of(x[i])
    elif activation in (RELU, RELU2):
        for i in range(count):
            value = ZERO if x[i] < ZERO else x[i]  # NaN stays
            x[i] = value * value if activation == RELU2 else value
    elif activation == SWIGLU_OAI:
        for i in range(count):
            x[i] = x[i] * sigmoid(QUICK * x[i])


@operation
def activate(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT = activation(X), times Y if there is one, and as integers; shared by places and pieces of 256
    columns.

    With a CHOICE, X and Y are first multiplied by the weights of their places.
    """
    op, numbers = array_at(row, FIELDS, np.int64), array_at(row, FIELDS, np.float64)
    pieces, room = op[OUT_WIDTH] // SUPER, op[OUT_WIDTH]
    count = array_at(op[STATE], 1, np.int64)[0] * max(1, op[USED]) * pieces
    limit, clamps, activation, more = f32(numbers[LIMIT]), op[CLAMPS], op[ACTIVATION], f32(op[ACTIVATION] == SWIGLU_OAI)
    weights = array_at(_weights_at(op, thread), count, np.float32)
    for unit in range(count * thread // threads, count * (thread + 1) // threads):
        place, first = unit // pieces, unit % pieces * SUPER
        used = min(SUPER, op[WIDTH] - first)
        x = array_at(op[X] + 4 * (place * op[X_WIDTH] + first), used, np.float32)
        y = array_at(op[Y] + 4 * (place * op[Y_WIDTH] + first), used, np.float32)
        out = array_at(op[OUT] + 4 * (place * room + first), SUPER, np.float32)
        factor = weights[place] if op[CHOICE] else ONE
        for i in range(used):
            value = x[i] * factor
            out[i] = limit if clamps == CLAMPS_GATE and value > limit else value
        _activate(out, used, activation)
        if op[Y]:
            for i in range(used):
                value = out[i]
                value = limit if clamps == CLAMPS_ACTIVATED and value > limit else value
                other = y[i] * factor
                other = limit if other > limit else (-limit if other < -limit else other)
                out[i] = value * (other + more)
        shorts = array_at(op[SHORTS] + 2 * (place * room + first), SUPER, np.int16)
        pack(out, 0, SUPER, shorts, array_at(op[NUMBERS_AT] + 4 * (unit * NUMBERS), NUMBERS, np.float32), 0)


@operation
def add_up(row, thread, threads):  # type: ignore[no-untyped-def]
    """Compute OUT = SCALE times the sum of the outputs of a token's experts, X (places, WIDTH), by their weights, in
    their order.

    A shared expert's output is added, times the sigmoid of SHARED_GATE if there is one. Columns are shared as `dots`
    shares rows: a thread adds up its own results.
    """
    op, numbers = array_at(row, FIELDS, np.int64), array_at(row, FIELDS, np.float64)
    tokens, used, width = array_at(op[STATE], 1, np.int64)[0], op[USED], op[WIDTH]
    weights, scale = array_at(_weights_at(op, thread), tokens * used, np.float32), f32(numbers[SCALE])
    first, last = width * thread // threads, width * (thread + 1) // threads
    whole = first + (last - first) // LANES * LANES
    for t in range(tokens):
        x = array_at(op[X] + 4 * used * t * op[X_WIDTH], used * op[X_WIDTH], np.float32)
        out = array_at(op[OUT] + 4 * t * op[OUT_WIDTH], width, np.float32)
        shared = array_at(op[SHARED] + 4 * t * op[SHARED_WIDTH], width, np.float32)
        gate = ONE
        if op[SHARED_GATE]:
            gate = sigmoid(array_at(op[SHARED_GATE] + 4 * t * op[GATE_WIDTH], 1, np.float32)[0])
        for c in range(first, whole, LANES):
            total = every(ZERO)
            for k in range(used):
                total += load(x, k * op[X_WIDTH] + c) * every(weights[t * used + k] if op[WEIGHS] else ONE)
            if op[SHARED]:
                total += load(shared, c) * every(gate)
            total *= every(scale)
            store(out, c, load(out, c) + total if op[ADDS] else total)
        for c in range(whole, last):
            sum_ = ZERO
            for k in range(used):
                sum_ += x[k * op[X_WIDTH] + c] * (weights[t * used + k] if op[WEIGHS] else ONE)
            if op[SHARED]:
                sum_ += shared[c] * gate
            sum_ *= scale
            out[c] = out[c] + sum_ if op[ADDS] else sum_
