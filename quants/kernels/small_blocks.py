"""Blocks of 32 codes: Q8_0, Q4_0 and Q5_0 under one scale, Q4_1 and Q5_1 counted from the block's lowest value.

In Q4_0 and Q5_0 the lowest code stands for the value of largest magnitude. Codes of Q5_0 and Q5_1 have a fifth bit, in
the field `qh`, which the others lack.
"""

from typing import Any

import numpy as np

from .blocks import (
    Bytes,
    Floats,
    Kernels,
    Memory,
    bytes_to_words,
    codec,
    load_blocks,
    load_codes,
    load_half,
    put_all,
    put_codes,
    sum_of_squares,
    weigh_columns,
)
from .half import to_half
from .jit import kernel
from .lane_memory import block_offsets, load, put_halves, store, transpose
from .lanes import LANES, smaller, to_float, to_int, where
from .rounding import half_away
from .scales import ONE, ZERO, extreme, offset_codes, scale_and_minimum, signed_codes, signed_scale, span
from .wide_lanes import GROUPS, store_wide

VALUES, Q8_BYTES = 32, 34
HALF, Q8_TOP = np.float32(0.5), np.float32(127)


def _kernels(fifth: bool, offset: bool) -> Kernels:
    """Return the kernels of a format with or without fifth bits, with codes counted from the lowest value (offset) or
    not.

    Codes are 0 … top; those not counted from the lowest value are -middle … middle - 1, stored with middle added.
    """
    return Kernels(_encoder(fifth, offset), _weighted_encoder(fifth, offset), _decoder(fifth, offset))


def _layout(fifth: bool, offset: bool) -> tuple[int, int, int]:
    """Return the highest code, where a block's codes begin, and the bytes of a block."""
    codes_at = 4 if offset else 2
    return 31 if fifth else 15, codes_at, codes_at + (20 if fifth else 16)


def _encoder(fifth: bool, offset: bool) -> Any:
    max_code, codes_at, block_bytes = _layout(fifth, offset)
    top, middle = np.float32(max_code), np.float32(max_code // 2 + 1)

    @kernel
    def encode(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
        side, codes, targets = memory.x, memory.codes, memory.targets
        for first in range(0, x.size // VALUES, LANES):
            load_blocks(x, first, VALUES, block_bytes, memory)
            if offset:
                low, high = span(side, 0, VALUES)
                d = (high - low) / top
                put_halves(raw, targets, 2, to_half(low))
            else:
                signed, _ = extreme(side, 0, VALUES)
                d = signed / -middle
            put_halves(raw, targets, 0, to_half(d))
            inverse = where(d == ZERO, ZERO, ONE / d)
            for i in range(0, VALUES * LANES, LANES):
                if offset:
                    code = to_int((load(side, i) - low) * inverse + HALF)
                else:
                    code = to_int(load(side, i) * inverse + (middle + HALF))
                store(codes, i, code if fifth and offset else smaller(code, max_code))
            put_codes(codes, fifth, raw, targets, codes_at)

    return encode


def _weighted_encoder(fifth: bool, offset: bool) -> Any:
    max_code, codes_at, block_bytes = _layout(fifth, offset)
    top, middle = np.float32(max_code), np.float32(max_code // 2 + 1)

    @kernel
    def weighted(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
        """Encode with the best of 38 scales with minima, or of 19. Sixteen rows side by side: weights use a whole row's
        mean.
        """
        side, codes, targets, width = memory.x, memory.codes, memory.targets, importance.size
        count, per_row = x.size // width, width // VALUES
        for first in range(0, count, LANES):
            block_offsets(first, count, width, memory.starts)
            block_offsets(first, count, block_bytes * per_row, targets)
            transpose(x, memory.starts, width, side)
            mean = sum_of_squares(side, 0, width) / np.float32(width)
            for b in range(0, per_row, GROUPS):  # the values after a row are padding that fills the last groups
                group = side[LANES * VALUES * b :]
                weigh_columns(group, importance[VALUES * b : VALUES * (b + GROUPS)], mean, memory.weights)
                if offset:
                    scale, minimum, low, inverse = scale_and_minimum(
                        group,
                        memory.weights,
                        0,
                        VALUES,
                        top,
                        np.float32(-0.9),
                        np.float32(0.05),
                        36,
                        False,
                        memory.scratch,
                    )
                    store_wide(memory.minima, 0, LANES, minimum)
                    store_wide(memory.lows, 0, LANES, low)
                else:
                    scale, inverse = signed_scale(
                        group, memory.weights, memory.scratch, memory.limited, 0, VALUES, middle, LANES * VALUES
                    )
                store_wide(memory.scales, 0, LANES, scale)
                store_wide(memory.inverses, 0, LANES, inverse)
                for g in range(min(GROUPS, per_row - b)):
                    best, at = load(memory.inverses, LANES * g), block_bytes * (b + g)
                    put_halves(raw, targets, at, to_half(load(memory.scales, LANES * g)))
                    if offset:
                        put_halves(raw, targets, at + 2, to_half(-load(memory.minima, LANES * g)))
                    for i in range(0, VALUES * LANES, LANES):
                        v = load(group, LANES * VALUES * g + i)
                        if offset:
                            code = offset_codes(v, load(memory.lows, LANES * g), best, top)
                        else:
                            code = where(best == ZERO, ZERO, signed_codes(v, best, middle) + middle)
                        store(codes, i, to_int(code))
                    put_codes(codes, fifth, raw, targets, at + codes_at)

    return weighted


def _decoder(fifth: bool, offset: bool) -> Any:
    max_code, codes_at, block_bytes = _layout(fifth, offset)

    @kernel
    def decode(raw: Bytes, values: Floats) -> None:
        for b in range(values.size // VALUES):
            at, to = block_bytes * b, VALUES * b
            d = load_half(raw, at)
            low, high = load_codes(raw, at + codes_at, fifth)
            if offset:
                m = load_half(raw, at + 2)
                store(values, to, to_float(low) * d + m)
                store(values, to + LANES, to_float(high) * d + m)
            else:
                store(values, to, to_float(low - (max_code // 2 + 1)) * d)
                store(values, to + LANES, to_float(high - (max_code // 2 + 1)) * d)

    return decode


@kernel
def _encode_q8_0(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    codes = memory.codes
    for first in range(0, x.size // VALUES, LANES):
        load_blocks(x, first, VALUES, Q8_BYTES, memory)
        _, peak = extreme(memory.x, 0, VALUES)
        d = peak / Q8_TOP
        inverse = where(d == ZERO, ZERO, ONE / d)
        for i in range(0, VALUES * LANES, LANES):
            store(codes, i, half_away(load(memory.x, i) * inverse) & 255)
        bytes_to_words(codes, codes, VALUES)
        put_halves(raw, memory.targets, 0, to_half(d))
        put_all(raw, memory.targets, 2, codes, 8)


@kernel
def _decode_q8_0(raw: Bytes, values: Floats) -> None:
    signed = raw.view(np.int8)
    for b in range(values.size // VALUES):
        at, to = Q8_BYTES * b, VALUES * b
        d = load_half(raw, at)
        store(values, to, to_float(load(signed, at + 2)) * d)
        store(values, to + LANES, to_float(load(signed, at + 2 + LANES)) * d)


KERNELS = {
    "Q4_0": _kernels(False, False),
    "Q5_0": _kernels(True, False),
    "Q4_1": _kernels(False, True),
    "Q5_1": _kernels(True, True),
    "Q8_0": Kernels(_encode_q8_0, _encode_q8_0, _decode_q8_0),
}
encode, decode = codec(KERNELS)
