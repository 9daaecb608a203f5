"""Q1_0, Q2_0, TQ1_0 and TQ2_0: values of one or two bits, or of a trit, that share one half-precision scale."""

import numpy as np

from ..formats.q2_0 import BLOCK as Q2
from ..formats.tq1_0 import BLOCK as TQ1
from ..formats.tq2_0 import BLOCK as TQ2
from .blocks import Bytes, Floats, Kernels, Memory, codec, field_offsets, load_blocks, load_half, load_word, put_half
from .half import to_half
from .jit import inlined, kernel
from .lane_memory import load, put_halves, put_words, store
from .lanes import (
    LANES,
    Lanes,
    absolute,
    every,
    every_int,
    lane,
    lane_numbers,
    larger,
    largest_lane,
    mask_bits,
    to_float,
    where,
)
from .rounding import half_away

Q1_VALUES, Q2_VALUES, Q_BYTES, (_, QS) = 128, 64, Q2.itemsize, field_offsets(Q2)  # the same fields in both
TQ_VALUES, TQ1_BYTES, TQ2_BYTES = 256, TQ1.itemsize, TQ2.itemsize
_, TQ1_QH, TQ1_D = field_offsets(TQ1)
_, TQ2_D = field_offsets(TQ2)
# Where the first values of sixteen bytes lie in a block, and how far apart their digits are.
GROUPS = ((0, 32), (16, 32), (160, 16))
ZERO, ONE = np.float32(0), np.float32(1)


@kernel
def _encode_q1_0(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    count = x.size // Q1_VALUES
    for first in range(0, count, LANES):
        load_blocks(x, first, Q1_VALUES, Q_BYTES, memory)
        total = every(ZERO)
        for i in range(0, LANES * Q1_VALUES, LANES):
            total += absolute(load(memory.x, i))
        put_halves(raw, memory.targets, 0, to_half(total / np.float32(Q1_VALUES)))
        for b in range(first, min(first + LANES, count)):
            for i in range(Q1_VALUES // LANES):
                signs, at = mask_bits(load(x, Q1_VALUES * b + LANES * i) >= ZERO), Q_BYTES * b + QS + 2 * i
                raw[at], raw[at + 1] = signs, signs >> 8


@kernel
def _decode_q1_0(raw: Bytes, values: Floats) -> None:
    bit = every_int(1) << lane_numbers()
    for b in range(raw.size // Q_BYTES):
        positive = load_half(raw, Q_BYTES * b)
        for i in range(Q1_VALUES // LANES):
            at = Q_BYTES * b + QS + 2 * i
            signs = raw[at] | np.int32(raw[at + 1]) << 8
            store(values, Q1_VALUES * b + LANES * i, where((bit & signs) == 0, -positive, positive))


@kernel
def _encode_q2_0(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    for first in range(0, x.size // Q2_VALUES, LANES):
        load_blocks(x, first, Q2_VALUES, Q_BYTES, memory)
        d = every(ZERO)
        for i in range(0, LANES * Q2_VALUES, LANES):
            d = larger(d, absolute(load(memory.x, i)))
        inverse = where(d > ZERO, ONE / d, ZERO)
        put_halves(raw, memory.targets, 0, to_half(d))
        for k in range(0, Q2_VALUES, 16):
            word = half_away(load(memory.x, LANES * k) * inverse) + 1
            for i in range(1, 16):
                word |= half_away(load(memory.x, LANES * (k + i)) * inverse) + 1 << 2 * i
            put_words(raw, memory.targets, QS + k // 4, word)


@kernel
def _decode_q2_0(raw: Bytes, values: Floats) -> None:
    for b in range(raw.size // Q_BYTES):
        d = load_half(raw, Q_BYTES * b)
        for i in range(Q2_VALUES // LANES):
            q = load_word(raw, Q_BYTES * b + QS + 4 * i) >> lane_numbers() * 2 & 3
            store(values, Q2_VALUES * b + LANES * i, to_float(q - 1) * d)


@inlined
def _put_scale(x: Floats, b: int, raw: Bytes, at: int) -> Lanes:
    """Write the largest magnitude of 256 values as a float16 at byte `at`; return its inverse."""
    top = absolute(load(x, TQ_VALUES * b))
    for i in range(LANES, TQ_VALUES, LANES):
        top = larger(top, absolute(load(x, TQ_VALUES * b + i)))
    d = largest_lane(top)
    put_half(raw, at, d)
    return ONE / d if d > ZERO else ZERO


@inlined
def _byte(trits: Lanes) -> Lanes:
    """Return ceil(trits * 256 / 243) for trits < 243."""
    return ((trits * 256 + 242) * 17261) >> 22


@kernel
def _encode_tq1_0(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    last = memory.words
    for b in range(x.size // TQ_VALUES):
        inverse = _put_scale(x, b, raw, TQ1_BYTES * b + TQ1_D)
        for g in range(3):
            at, step = TQ_VALUES * b + GROUPS[g][0], GROUPS[g][1]
            trits = half_away(load(x, at) * inverse) + 1
            for j in range(1, 5):
                trits = trits * 3 + half_away(load(x, at + j * step) * inverse) + 1
            store(raw, TQ1_BYTES * b + LANES * g, _byte(trits))
        store(last, 0, half_away(load(x, TQ_VALUES * b + 240) * inverse) + 1)
        for i in range(4):
            trits = ((last[i] * 3 + last[4 + i]) * 3 + last[8 + i]) * 3 + last[12 + i]
            raw[TQ1_BYTES * b + TQ1_QH + i] = (trits * 3 * 256 + 242) // 243


@kernel
def _decode_tq1_0(raw: Bytes, values: Floats) -> None:
    for b in range(raw.size // TQ1_BYTES):
        d = load_half(raw, TQ1_BYTES * b + TQ1_D)
        for g in range(3):
            at, step = TQ_VALUES * b + GROUPS[g][0], GROUPS[g][1]
            trits = load(raw, TQ1_BYTES * b + LANES * g)
            for j in range(5):
                store(values, at + j * step, to_float(((trits * 3) >> 8) - 1) * d)
                trits = (trits * 3) & 255
        for i in range(4):
            rest = np.int32(raw[TQ1_BYTES * b + TQ1_QH + i])
            for j in range(4):
                values[TQ_VALUES * b + 240 + 4 * j + i] = np.float32(((rest * 3) >> 8) - 1) * lane(d, 0)
                rest = (rest * 3) & 255


@kernel
def _encode_tq2_0(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    for b in range(x.size // TQ_VALUES):
        inverse = _put_scale(x, b, raw, TQ2_BYTES * b + TQ2_D)
        for k in range(2):
            for i in range(0, 32, LANES):
                at = TQ_VALUES * b + 128 * k + i
                four = half_away(load(x, at) * inverse) + 1
                for j in range(1, 4):
                    four |= (half_away(load(x, at + 32 * j) * inverse) + 1) << (2 * j)
                store(raw, TQ2_BYTES * b + 32 * k + i, four)


@kernel
def _decode_tq2_0(raw: Bytes, values: Floats) -> None:
    for b in range(raw.size // TQ2_BYTES):
        d = load_half(raw, TQ2_BYTES * b + TQ2_D)
        for k in range(2):
            for i in range(0, 32, LANES):
                four = load(raw, TQ2_BYTES * b + 32 * k + i)
                for j in range(4):
                    q = ((four >> (2 * j)) & 3) - 1
                    store(values, TQ_VALUES * b + 128 * k + 32 * j + i, to_float(q) * d)


KERNELS = {
    "Q1_0": Kernels(_encode_q1_0, _encode_q1_0, _decode_q1_0),
    "Q2_0": Kernels(_encode_q2_0, _encode_q2_0, _decode_q2_0),
    "TQ1_0": Kernels(_encode_tq1_0, _encode_tq1_0, _decode_tq1_0),
    "TQ2_0": Kernels(_encode_tq2_0, _encode_tq2_0, _decode_tq2_0),
}
encode, decode = codec(KERNELS)
