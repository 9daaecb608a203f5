"""Products of stored blocks of 256 weights with 16-bit inputs, as two products of bytes: `vpdpbusd` of x86.

A weight's code is an unsigned byte, an input's integer is 256 times its upper byte plus its lower byte, both signed. So
an instruction multiplies 64 weights, with the same integer as result.

Lane i of every register belongs to columns 16 * i … 16 * i + 15; register j of four has those from 4 * j on. So a
vector holds the factors of all products of a block, which are converted to float once. Inputs are stored in this order,
too (`spread`), after the numbers of their 256 columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.lane_memory import load, load_at, store, store_at
from quants.kernels.lanes import (
    BYTE,
    FLOATS,
    INDEX,
    LANES,
    WORD,
    WORDS,
    every,
    every_int,
    f32x16,
    i32x16,
    lane_numbers,
    to_float,
)
from quants.kernels.numba_internals import UniTuple, cgutils, intrinsic, ir, nt

from .int16x32 import (
    bytes_as_floats,
    cpu_features,
    each_twice,
    every_half,
    half_pair,
    load_small,
    load_word,
    multiply_add,
    prefetch,
    six_bit_numbers,
    sum_of_lanes,
    sums_of_lanes,
)
from .thread_team import array_at

f32 = np.float32
SUPER, ZERO = 256, f32(0)
AHEAD = 4096  # bytes of weights prefetched: the processor itself stops at each page
TAKES_BYTES = {"+avx512vnni", "+avx512bw"} <= cpu_features()
# For every 256 columns, in float32: sums of 16; for each lane its scale, that of its 32 columns; four times 64 upper
# bytes, and as many lower ones.
HALVES_AT, TWICE_AT, UPPER_AT, LOWER_AT, WITH_BYTES = 16, 32, 48, 112, 176
BYTES_OF_WORD = 0x01010101
SIX_BITS_ZERO, THREE_BITS_ZERO, LEVELS_ZERO = f32(32), f32(4), f32(128)  # the codes that mean 0
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


@intrinsic
def _put_bytes(typing: Any, array: Any, at: Any, value: Any) -> Any:
    """Store the lowest bytes of each lane, four to array[at], four to array[at + 16], …, elements of 32 bits."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        words = builder.bitcast(builder.trunc(args[2], ir.VectorType(BYTE, LANES)), ir.VectorType(WORD, 4))
        for j in range(4):
            to = builder.add(args[1], ir.Constant(INDEX, LANES * j))
            store_at(context, builder, array, args[0], to, builder.extract_element(words, ir.Constant(WORD, j)))
        return context.get_dummy_value()

    return nt.void(array, nt.intp, i32x16), codegen


@inlined
def spread(shorts, at, numbers, to):  # type: ignore[no-untyped-def]
    """Store the bytes of shorts[at : at + 256], and the scale of each lane, in their places after numbers[to:]."""
    store(numbers, to + TWICE_AT, each_twice(load(numbers, to), 0))
    for i in range(LANES):
        value = load(shorts, at + LANES * i)
        _put_bytes(numbers, to + UPPER_AT + i, (value + 128) >> 8)
        _put_bytes(numbers, to + LOWER_AT + i, value)


# Codes: four registers of a block


Words = Callable[[int], ir.Value]  # sixteen from a byte of the block on


def _every(number: int) -> ir.Constant:
    return ir.Constant(WORDS, [number] * LANES)


def _fields(
    builder: ir.IRBuilder, low: ir.Value, high: ir.Value, mask: int, place: Callable[[int], tuple[int, int]]
) -> list[ir.Value]:
    """Return four registers of bytes with the bits of a mask. place(i): for lane i of the first register, the number of
    a word of low and high, thirty-two, and its right shift; the other registers take the next words.
    """
    places, made = [place(i) for i in range(LANES)], []
    shifts, bits = ir.Constant(WORDS, [shift for _, shift in places]), _every(mask * BYTES_OF_WORD)
    for j in range(4):
        words = builder.shuffle_vector(low, high, ir.Constant(WORDS, [word + j for word, _ in places]))
        made.append(builder.and_(builder.lshr(words, shifts), bits))
    return made


def _codes(emit: Callable[[ir.IRBuilder, Words], list[ir.Value]]) -> Any:
    """Return an intrinsic of bytes and where a block begins."""

    @intrinsic
    def made(typing: Any, raw: Any, at: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
            def words(start: int) -> ir.Value:
                place = builder.add(args[1], ir.Constant(INDEX, start))
                return load_at(context, builder, raw, args[0], place, WORDS)

            return context.make_tuple(builder, signature.return_type, emit(builder, words))

        return UniTuple(i32x16, 4)(raw, nt.intp), codegen

    return made


def _nibbles(builder: ir.IRBuilder, low: ir.Value, high: ir.Value) -> list[ir.Value]:
    """Return 128 bytes' nibbles, where 32 have 32 codes in their lower halves, and the next 32 in their upper ones."""
    return _fields(builder, low, high, 15, lambda i: (i // 4 * 8 + i % 2 * 4, i // 2 % 2 * 4))


def _pairs_of_bits(builder: ir.IRBuilder, words: ir.Value) -> list[ir.Value]:
    """Return 64 bytes' bit pairs, where 32 have 32 codes in their lowest two bits, the next 32 in the next two, …"""
    return _fields(builder, words, words, 3, lambda i: (i // 8 * 8 + i % 2 * 4, i // 2 % 4 * 2))


def _single_bits(builder: ir.IRBuilder, words: ir.Value, to: int) -> list[ir.Value]:
    """Return single bits of 32 bytes, bit k of which is for 32 codes, the next for the next 32: as bit `to`, 2 … 4."""
    low, high = builder.shl(words, _every(to)), builder.lshr(words, _every(4 - to))
    return _fields(builder, low, high, 1 << to, lambda i: (i // 8 * 16 + i % 2 * 4, i // 2 % 4))


def _joined(builder: ir.IRBuilder, first: list[ir.Value], second: list[ir.Value]) -> list[ir.Value]:
    return [builder.or_(a, b) for a, b in zip(first, second, strict=True)]


def _emit_q3_k(builder: ir.IRBuilder, words: Words) -> list[ir.Value]:
    return _joined(builder, _pairs_of_bits(builder, words(32)), _single_bits(builder, words(0), 2))


def _emit_q5_k(builder: ir.IRBuilder, words: Words) -> list[ir.Value]:
    return _joined(builder, _nibbles(builder, words(48), words(112)), _single_bits(builder, words(16), 4))


def _emit_q6_k(builder: ir.IRBuilder, words: Words) -> list[ir.Value]:
    low = _fields(builder, words(0), words(64), 15, lambda i: (i // 8 * 16 + i % 4 * 4, i // 4 % 2 * 4))
    left = builder.shl(words(128), _every(4))
    upper = _fields(builder, left, words(128), 48, lambda i: (i // 4 % 2 * 16 + i // 8 * 8 + i % 2 * 4, i // 2 % 2 * 2))
    return _joined(builder, low, upper)


def _emit_iq4_xs(builder: ir.IRBuilder, words: Words) -> list[ir.Value]:
    """Return LEVELS plus 128, by the nibbles of 16 bytes for 32 columns, the lower halves first."""
    bytes_ = ir.VectorType(BYTE, 4 * LANES)
    function_type = ir.FunctionType(bytes_, [bytes_, bytes_])
    shuffle = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.avx512.pshuf.b.512")
    levels = ir.Constant(bytes_, [int(level) + 128 for level in LEVELS] * 4)
    nibbles = _fields(builder, words(8), words(72), 15, lambda i: (i // 2 * 4, i % 2 * 4))
    return [builder.bitcast(builder.call(shuffle, [levels, builder.bitcast(each, bytes_)]), WORDS) for each in nibbles]


_q2_k_codes = _codes(lambda builder, words: _pairs_of_bits(builder, words(16)))
_q3_k_codes, _q5_k_codes, _q6_k_codes = _codes(_emit_q3_k), _codes(_emit_q5_k), _codes(_emit_q6_k)
_q4_k_codes = _codes(lambda builder, words: _nibbles(builder, words(16), words(80)))
_iq4_xs_codes, _tq2_0_codes = _codes(_emit_iq4_xs), _codes(lambda builder, words: _pairs_of_bits(builder, words(0)))


# Products


def _add_products(builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """Add in each lane the products of four bytes, unsigned codes and signed x."""
    function_type = ir.FunctionType(WORDS, [WORDS] * 3)
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(function, [total, codes, x])


@intrinsic
def _sums(typing: Any, codes: Any, n: Any, at: Any) -> Any:
    """Return the products of codes of each of some rows with the bytes of an input, whose numbers begin at n[at]:
    f32x16.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        rows = [cgutils.unpack_tuple(builder, each) for each in cgutils.unpack_tuple(builder, args[0])]
        upper, lower = ([_every(0)] * len(rows) for _ in range(2))  # none of these sums waits for another
        for j in range(4):
            for totals, start in ((upper, UPPER_AT), (lower, LOWER_AT)):
                place = builder.add(args[2], ir.Constant(INDEX, start + LANES * j))
                own = load_at(context, builder, n, args[1], place, WORDS)
                totals[:] = [
                    _add_products(builder, total, row[j], own) for total, row in zip(totals, rows, strict=True)
                ]
        sums = [builder.add(builder.shl(high, _every(8)), low) for high, low in zip(upper, lower, strict=True)]
        return context.make_tuple(builder, signature.return_type, [builder.sitofp(each, FLOATS) for each in sums])

    return UniTuple(f32x16, len(codes))(codes, n, nt.intp), codegen


@intrinsic
def align_stack(typing: Any) -> Any:
    """Align this function's stack memory to a cache line: LLVM itself lets registers stored there cross lines."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        memory = cgutils.alloca_once(builder, ir.ArrayType(BYTE, 64))
        memory.align = 64
        function_type = ir.FunctionType(ir.VoidType(), [memory.type])
        builder.call(ir.InlineAsm(function_type, "", "r", side_effect=True), [memory])
        return context.get_dummy_value()

    return nt.void(), codegen


# Blocks: f(raw, at) are a block's codes, the scales of their lanes, and what the sums of inputs are multiplied with.


@inlined
def q4_k(raw, at):  # type: ignore[no-untyped-def]
    f = six_bit_numbers(raw, at) * half_pair(raw, at)
    return _q4_k_codes(raw, at), each_twice(f, 0), each_twice(f, 8)


@inlined
def q5_k(raw, at):  # type: ignore[no-untyped-def]
    f = six_bit_numbers(raw, at) * half_pair(raw, at)
    return _q5_k_codes(raw, at), each_twice(f, 0), each_twice(f, 8)


@inlined
def q6_k(raw, at):  # type: ignore[no-untyped-def]
    scales = to_float(load_small(raw, at + 192)) * every_half(raw, at + 208)
    return _q6_k_codes(raw, at), scales, scales * -SIX_BITS_ZERO


@inlined
def q3_k_scales(raw, at):  # type: ignore[no-untyped-def]
    """Return the sixteen scales of 6 bits, which are stored plus 32."""
    first, second, high = load_word(raw, at + 96), load_word(raw, at + 100), load_word(raw, at + 104)
    return bytes_as_floats(
        first & 0x0F0F0F0F | (high & 0x03030303) << 4,
        second & 0x0F0F0F0F | (high >> 2 & 0x03030303) << 4,
        first >> 4 & 0x0F0F0F0F | (high >> 4 & 0x03030303) << 4,
        second >> 4 & 0x0F0F0F0F | (high >> 6 & 0x03030303) << 4,
    )


@inlined
def q2_k(raw, at):  # type: ignore[no-untyped-def]
    both = load_small(raw, at)
    scales = to_float(both & 15) * every_half(raw, at + 80)
    return _q2_k_codes(raw, at), scales, to_float((both >> 4) & 15) * -every_half(raw, at + 82)


@inlined
def q3_k(raw, at):  # type: ignore[no-untyped-def]
    scales = (q3_k_scales(raw, at) - f32(32)) * every_half(raw, at + 108)
    return _q3_k_codes(raw, at), scales, scales * -THREE_BITS_ZERO


@inlined
def iq4_xs(raw, at):  # type: ignore[no-untyped-def]
    k = lane_numbers() >> 1
    low, high = every_int(load_word(raw, at + 4)) >> 4 * k, every_int(load_word(raw, at) >> 16) >> 2 * k
    scales = to_float((low & 15) + 16 * (high & 3) - 32) * every_half(raw, at)
    return _iq4_xs_codes(raw, at), scales, scales * -LEVELS_ZERO


@inlined
def tq2_0(raw, at):  # type: ignore[no-untyped-def]
    scales = every_half(raw, at + 64)
    return _tq2_0_codes(raw, at), scales, -scales


# Products of rows of weights, from raw[at:] and raw[other:] on, with inputs, whose numbers are at the addresses n.


@inlined
def _fetch(raw, at, size):  # type: ignore[no-untyped-def]
    for line in range(0, size, 64):
        prefetch(raw, at + line)


@inlined
def _scaled(sums, block, n, n_at, total):  # type: ignore[no-untyped-def]
    """Return total plus the products of a block with an input."""
    total = multiply_add(block[2], load(n, n_at + HALVES_AT), total)
    return multiply_add(sums, block[1] * load(n, n_at + TWICE_AT), total)


@inlined
def _add(block, n, n_at, total):  # type: ignore[no-untyped-def]
    sums = _sums((block[0],), n, n_at)
    return _scaled(sums[0], block, n, n_at, total)


@inlined
def _add_both(block, other, n, n_at, a, b):  # type: ignore[no-untyped-def]
    """Return `_scaled` for a block of each of two rows."""
    sums = _sums((block[0], other[0]), n, n_at)
    return _scaled(sums[0], block, n, n_at, a), _scaled(sums[1], other, n, n_at, b)


@inlined
def with_one(raw, at, width, n, size, block):  # type: ignore[no-untyped-def]
    a, x = every(ZERO), array_at(n, 1, np.float32)
    for n_at in range(0, width // SUPER * WITH_BYTES, WITH_BYTES):
        _fetch(raw, at + AHEAD, size)
        a = _add(block(raw, at), x, n_at, a)
        at += size
    return sum_of_lanes(a)


@inlined
def with_two(raw, at, width, n, size, block):  # type: ignore[no-untyped-def]
    a, b = every(ZERO), every(ZERO)
    x, y = array_at(n[0], 1, np.float32), array_at(n[1], 1, np.float32)
    for n_at in range(0, width // SUPER * WITH_BYTES, WITH_BYTES):
        _fetch(raw, at + AHEAD, size)
        own = block(raw, at)
        a, b = _add(own, x, n_at, a), _add(own, y, n_at, b)
        at += size
    return sum_of_lanes(a), sum_of_lanes(b)


@inlined
def four_with_two(raw, at, other, ahead, width, n, size, block):  # type: ignore[no-untyped-def]
    """Return for each input the products of both rows. ahead: distance in bytes to prefetch."""
    x, y = array_at(n[0], 1, np.float32), array_at(n[1], 1, np.float32)
    z, w = array_at(n[2], 1, np.float32), array_at(n[3], 1, np.float32)
    zero = every(ZERO)
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    for n_at in range(0, width // SUPER * WITH_BYTES, WITH_BYTES):
        _fetch(raw, at + ahead, size)
        _fetch(raw, other + ahead, size)
        first, second = block(raw, at), block(raw, other)
        a, b = _add_both(first, second, x, n_at, a, b)
        c, d = _add_both(first, second, y, n_at, c, d)
        e, f = _add_both(first, second, z, n_at, e, f)
        g, h = _add_both(first, second, w, n_at, g, h)
        at += size
        other += size
    low, high = sums_of_lanes(a, b, c, d), sums_of_lanes(e, f, g, h)
    return (low[0], low[1]), (low[2], low[3]), (high[0], high[1]), (high[2], high[3])
