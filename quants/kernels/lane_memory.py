"""Lanes and memory: loads, stores, lookups, and blocks laid side by side and back.

Loads and stores take a C-contiguous array of any shape and an offset in elements from its first; nothing is checked.
`transpose` lays many blocks side by side, so that a lane works on one block: sums then run in the order of a scalar
loop over the block, as bit-exact formats need.
"""

from __future__ import annotations

import functools
from typing import Any

import numba.core.types as nt
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

from .jit import inlined, inlined_once
from .lanes import BYTES, FLOAT, FLOATS, INDEX, LANES, SHORT, SHORTS, WORD, WORDS, f32x16, i32x16


def address_of(
    context: Any, builder: ir.IRBuilder, array: nt.Array, value: ir.Value, offset: ir.Value, pointee: Any
) -> ir.Value:
    """Address of element `offset` counted from the array's first, as a pointer to `pointee`."""
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [offset]), pointee.as_pointer())


def element_bits(array: nt.Type, purpose: str) -> ir.VectorType:
    """Sixteen elements of an array as they lie in memory. Raises numba's TypingError for other than our dtypes."""
    kinds = {
        nt.float32: FLOATS, nt.int32: WORDS, nt.uint32: WORDS,
        nt.int16: SHORTS, nt.uint16: SHORTS, nt.int8: BYTES, nt.uint8: BYTES,
    }  # fmt: skip
    if not isinstance(array, nt.Array) or array.layout != "C" or array.dtype not in kinds:
        raise TypingError(f"cannot {purpose} {array}: needs a C-contiguous array of float32 or integers up to 32 bits")
    return kinds[array.dtype]


@intrinsic
def load(typing: Any, array: Any, offset: Any) -> Any:
    """Sixteen consecutive elements: f32x16 of a float32 array, i32x16 of an integer array (8, 16, 32 bits)."""
    bits = element_bits(array, "load from")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        value = builder.load(address_of(context, builder, signature.args[0], args[0], args[1], bits))
        value.align = 1
        if bits in (FLOATS, WORDS):
            return value
        return builder.sext(value, WORDS) if array.dtype.signed else builder.zext(value, WORDS)

    return (f32x16 if bits is FLOATS else i32x16)(array, nt.intp), codegen


@intrinsic
def store(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """f32x16 to sixteen elements of a float32 array, i32x16 cut to the width of an integer array's elements."""
    bits = element_bits(array, "store to")
    if value != (f32x16 if bits is FLOATS else i32x16):
        raise TypingError(f"cannot store {value} to {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        lanes = args[2] if bits in (FLOATS, WORDS) else builder.trunc(args[2], bits)
        pointer = address_of(context, builder, signature.args[0], args[0], args[1], bits)
        builder.store(lanes, pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, nt.intp, value), codegen


def _has(context: Any, *features: str) -> bool:
    """The processor compiled for is an x86 with one of these features (name those that imply the one you need)."""
    triple, _, known = context.codegen().magic_tuple()
    return triple.startswith("x86_64") and not {f"+{f}" for f in features}.isdisjoint(known.split(","))


@intrinsic
def lookup(typing: Any, table: Any, at: Any, index: Any) -> Any:
    """table[at + index] in each lane, as i32x16: an int8 table, of which sixteen entries are used, index 0 … 15."""
    if not isinstance(table, nt.Array) or table.dtype != nt.int8 or index != i32x16:
        raise TypingError(f"cannot look up {index} in {table}: needs an int8 table and i32x16")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        entries = builder.load(address_of(context, builder, signature.args[0], args[0], args[1], BYTES))
        entries.align = 1
        numbers = builder.trunc(args[2], BYTES)
        if _has(context, "ssse3", "avx", "avx2"):
            kind = ir.FunctionType(BYTES, [BYTES, BYTES])
            shuffle = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.ssse3.pshuf.b.128")
            return builder.sext(builder.call(shuffle, [entries, numbers]), WORDS)
        found = ir.Constant(BYTES, ir.Undefined)
        for i in range(LANES):
            number = builder.zext(builder.extract_element(numbers, ir.Constant(WORD, i)), WORD)
            found = builder.insert_element(found, builder.extract_element(entries, number), ir.Constant(WORD, i))
        return builder.sext(found, WORDS)

    return i32x16(table, nt.intp, i32x16), codegen


def _pick(entries: int) -> Any:
    """Signature and code of table[index % entries] in each lane; its table is its own aligned `entries` lanes."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        table, index = args
        wide = {4: "avx512.vpermilvar.ps.512", 8: "avx512.permvar.sf.512"}[entries]
        half = {4: "avx.vpermilvar.ps.256", 8: "avx2.permps"}[entries]
        if _has(context, "avx512f"):
            if entries == 8:
                index = builder.and_(index, ir.Constant(WORDS, [7] * LANES))
                index = builder.or_(index, ir.Constant(WORDS, [i & 8 for i in range(LANES)]))
            kind = ir.FunctionType(FLOATS, [FLOATS, WORDS])
            shuffle = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{wide}")
            return builder.call(shuffle, [table, index])
        if _has(context, "avx2"):
            eight = [ir.Constant(ir.VectorType(WORD, 8), list(range(i, i + 8))) for i in (0, 8)]
            kind = ir.FunctionType(ir.VectorType(FLOAT, 8), [ir.VectorType(FLOAT, 8), ir.VectorType(WORD, 8)])
            shuffle = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{half}")
            halves = [builder.call(shuffle, [builder.shuffle_vector(a, a, pick) for a in args]) for pick in eight]
            return builder.shuffle_vector(*halves, ir.Constant(WORDS, list(range(LANES))))
        places = [[i // entries * entries + k for i in range(LANES)] for k in range(entries)]
        found = [builder.shuffle_vector(table, table, ir.Constant(WORDS, place)) for place in places]
        bit = 1
        while len(found) > 1:
            masked = builder.and_(index, ir.Constant(WORDS, [bit] * LANES))
            odd = builder.icmp_signed("!=", masked, ir.Constant(WORDS, [0] * LANES))
            found = [builder.select(odd, b, a) for a, b in zip(found[::2], found[1::2], strict=True)]
            bit *= 2
        return found[0]

    return f32x16(f32x16, i32x16), codegen


@intrinsic
def pick_of_four(typing: Any, table: Any, index: Any) -> Any:
    """table[index % 4] in each lane, where the table is the lane's own four of an f32x16: lanes 0 … 3, 4 … 7, …"""
    return _pick(4)


@intrinsic
def pick_of_eight(typing: Any, table: Any, index: Any) -> Any:
    """table[index % 8] in each lane, where the table is the lane's own half of an f32x16: lanes 0 … 7 or 8 … 15."""
    return _pick(8)


def _put(array: nt.Array, offsets: nt.Array, bits: ir.IntType) -> Any:
    """Signature and code that store the low bits of lane i to bytes offsets[i] + at of a uint8 array."""
    if array.dtype != nt.uint8 or offsets.dtype != nt.int64:
        raise TypingError(f"needs a uint8 array and int64 offsets, not {array} and {offsets}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        lanes = args[3] if bits is WORD else builder.trunc(args[3], ir.VectorType(bits, LANES))
        for i in range(LANES):
            start = builder.load(address_of(context, builder, offsets, args[1], ir.Constant(INDEX, i), INDEX))
            pointer = address_of(context, builder, array, args[0], builder.add(start, args[2]), bits)
            builder.store(builder.extract_element(lanes, ir.Constant(WORD, i)), pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, offsets, nt.intp, i32x16), codegen


@intrinsic
def put_words(typing: Any, array: Any, offsets: Any, at: Any, value: Any) -> Any:
    """Each lane's 32 bits, little endian, to the uint8 array from byte offsets[lane] + at on (offsets: int64 (16,))."""
    return _put(array, offsets, WORD)


def _word_columns(
    context: Any, builder: ir.IRBuilder, array: nt.Array, value: ir.Value, at: ir.Value, count: int
) -> list[ir.Value]:
    """`count` times sixteen words, from element `at` on."""
    columns = []
    for k in range(count):
        start = builder.add(at, ir.Constant(INDEX, LANES * k))
        column = builder.load(address_of(context, builder, array, value, start, WORDS))
        column.align = 1
        columns.append(column)
    return columns


@intrinsic
def put_quads(typing: Any, array: Any, offsets: Any, at: Any, words: Any, words_at: Any) -> Any:
    """Four words of each lane to sixteen blocks.

    Word k of lane i, words[words_at + 16 * k + i] (int32), goes to bytes offsets[i] + at + 4 * k … of the uint8 array.
    """
    if array.dtype != nt.uint8 or offsets.dtype != nt.int64 or words.dtype != nt.int32:
        raise TypingError(f"cannot put {words} by {offsets} into {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        columns = _word_columns(context, builder, words, args[3], args[4], 4)
        for c, quads in enumerate(_quads(builder, columns)):
            for first in range(0, LANES, 4):
                pick = ir.Constant(ir.VectorType(WORD, 4), list(range(first, first + 4)))
                quad = builder.shuffle_vector(quads, ir.Constant(WORDS, ir.Undefined), pick)
                lane_number = ir.Constant(INDEX, first + c)
                start = builder.load(address_of(context, builder, offsets, args[1], lane_number, INDEX))
                pointer = address_of(context, builder, array, args[0], builder.add(start, args[2]), quad.type)
                builder.store(quad, pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, offsets, nt.intp, words, nt.intp), codegen


@intrinsic
def put_halves(typing: Any, array: Any, offsets: Any, at: Any, value: Any) -> Any:
    """Each lane's low 16 bits, little endian, to the uint8 array from byte offsets[lane] + at on."""
    return _put(array, offsets, SHORT)


PAGE = 4096
QUARTERS = (0, 4, 8, 12)  # the first lanes of the 128-bit parts that shuffles work on


def _shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, pick: list[int]) -> ir.Value:
    return builder.shuffle_vector(a, b, ir.Constant(WORDS, pick))


def _quads(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Of four vectors of sixteen words the columns, as four vectors: quarter l of vector c is column 4 * l + c."""
    low_words = [q + i for q in QUARTERS for i in (0, 16, 1, 17)]
    high_words = [q + i for q in QUARTERS for i in (2, 18, 3, 19)]
    low_pairs = [q + i for q in QUARTERS for i in (0, 1, 16, 17)]
    high_pairs = [q + i for q in QUARTERS for i in (2, 3, 18, 19)]
    a, b, c, d = rows
    halves = [(_shuffle(builder, a, b, pick), _shuffle(builder, c, d, pick)) for pick in (low_words, high_words)]
    return [_shuffle(builder, p, q, pick) for p, q in halves for pick in (low_pairs, high_pairs)]


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Sixteen vectors of sixteen words, rows and columns exchanged, in 64 two-register shuffles."""
    even_quarters = [q + i for q in (0, 8, 16, 24) for i in range(4)]
    odd_quarters = [q + i for q in (4, 12, 20, 28) for i in range(4)]
    groups = [_quads(builder, rows[g : g + 4]) for g in QUARTERS]
    columns: list[ir.Value] = [None] * LANES
    for c in range(4):
        t0, t1, t2, t3 = (group[c] for group in groups)
        for parity, pick in enumerate((even_quarters, odd_quarters)):
            first, second = _shuffle(builder, t0, t1, pick), _shuffle(builder, t2, t3, pick)
            columns[4 * parity + c] = _shuffle(builder, first, second, even_quarters)
            columns[4 * parity + 8 + c] = _shuffle(builder, first, second, odd_quarters)
    return columns


@intrinsic
def transpose_tile(typing: Any, source: Any, offsets: Any, at: Any, target: Any, target_at: Any) -> Any:
    """Sixteen elements of sixteen blocks each, block i into lane i.

    target[target_at + 16 * k + i] = source[offsets[i] + at + k] for k, i < 16; both float32 or both 32-bit integers,
    offsets int64 (16,). Blocks may be the same one.
    """
    kind = element_bits(source, "transpose from")
    if kind not in (FLOATS, WORDS) or element_bits(target, "transpose to") != kind or offsets.dtype != nt.int64:
        raise TypingError(f"cannot transpose {source} by {offsets} into {target}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        rows = []
        for i in range(LANES):
            start = builder.load(address_of(context, builder, offsets, args[1], ir.Constant(INDEX, i), INDEX))
            row = builder.load(address_of(context, builder, source, args[0], builder.add(start, args[2]), WORDS))
            row.align = 1
            rows.append(row)
        for k, column in enumerate(_transposed(builder, rows)):
            at = builder.add(args[4], ir.Constant(INDEX, LANES * k))
            builder.store(column, address_of(context, builder, target, args[3], at, WORDS)).align = 1
        return context.get_dummy_value()

    return nt.void(source, offsets, nt.intp, target, nt.intp), codegen


@intrinsic
def put_tile(typing: Any, array: Any, offsets: Any, at: Any, words: Any, words_at: Any) -> Any:
    """Sixteen words of each lane to sixteen blocks: the way back from `transpose_tile`.

    Word k of lane i, words[words_at + 16 * k + i] (int32), goes to bytes offsets[i] + at + 4 * k … of the uint8 array.
    """
    if array.dtype != nt.uint8 or offsets.dtype != nt.int64 or words.dtype != nt.int32:
        raise TypingError(f"cannot put {words} by {offsets} into {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        columns = _word_columns(context, builder, words, args[3], args[4], LANES)
        for i, row in enumerate(_transposed(builder, columns)):
            start = builder.load(address_of(context, builder, offsets, args[1], ir.Constant(INDEX, i), INDEX))
            pointer = address_of(context, builder, array, args[0], builder.add(start, args[2]), WORDS)
            builder.store(row, pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, offsets, nt.intp, words, nt.intp), codegen


@inlined
def transpose(source: NDArray[Any], offsets: NDArray[np.int64], width: int, target: NDArray[Any]) -> None:
    """Lay sixteen blocks side by side: target[16 * k + i] = source[offsets[i] + k] for k < width, a multiple of 16."""
    for at in range(0, width, LANES):
        transpose_tile(source, offsets, at, target, LANES * at)


def room_for_floats(count: int) -> NDArray[np.float32]:
    """Room for `count` times sixteen floats, placed as `float_lanes`; made before a kernel is called.

    Kernels that make arrays themselves take longer to compile.
    """
    return _on_a_page(LANES * count, np.float32)


def room_for_words(count: int) -> NDArray[np.int32]:
    """Room for `count` times sixteen 32-bit integers, so placed."""
    return _on_a_page(LANES * count, np.int32)


def _on_a_page(size: int, dtype: Any) -> NDArray[Any]:
    room = np.empty(size + PAGE // 4, dtype)
    skip = -room.ctypes.data % PAGE // 4
    return room[skip : skip + size]


@functools.partial(inlined_once, makes_arrays=True)
def float_lanes(count: int) -> NDArray[np.float32]:
    """Room for `count` times sixteen floats.

    It starts on a page: loads within a cache line are faster, and equal offsets in two such arrays don't look to the
    processor like a load from what was just stored.
    """
    room = np.empty(LANES * count + PAGE // 4, np.float32)
    skip = -room.ctypes.data % PAGE // 4
    return room[skip : skip + LANES * count]


@functools.partial(inlined_once, makes_arrays=True)
def int_lanes(count: int) -> NDArray[np.int32]:
    """Room for `count` times sixteen 32-bit integers, placed as `float_lanes`."""
    room = np.empty(LANES * count + PAGE // 4, np.int32)
    skip = -room.ctypes.data % PAGE // 4
    return room[skip : skip + LANES * count]


@inlined_once
def block_offsets(first: int, count: int, size: int, offsets: NDArray[np.int64]) -> None:
    """offsets[i] = size * (first + i), but never past the last of `count` blocks.

    So the tail of an array fills its spare lanes with copies of the last block: they compute and write the same bytes.
    """
    for i in range(LANES):
        offsets[i] = size * min(first + i, count - 1)
