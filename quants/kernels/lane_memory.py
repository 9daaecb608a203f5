"""Lanes and memory: loads, stores, lookups, and blocks laid side by side and back.

Loads and stores take a C-contiguous array of any shape and an offset in elements from its first; nothing is checked.
`transpose` lays many blocks side by side, so that a lane works on one block: sums then run in the order of a scalar
loop over the block, as bit-exact formats need.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import inlined, inlined_once
from .lanes import BYTES, FLOATS, INDEX, LANES, SHORT, SHORTS, WORD, WORDS, f32x16, i32x16
from .numba_internals import TypingError, cgutils, intrinsic, ir, nt

VECTORS = {
    nt.float32: FLOATS,
    nt.int32: WORDS,
    nt.uint32: WORDS,
    nt.int16: SHORTS,
    nt.uint16: SHORTS,
    nt.int8: BYTES,
    nt.uint8: BYTES,
}


def address_of(
    context: Any, builder: ir.IRBuilder, array: nt.Array, value: ir.Value, offset: ir.Value, pointee: Any
) -> ir.Value:
    """Return the address of element `offset` counted from the array's first, as a pointer to `pointee`."""
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [offset]), pointee.as_pointer())


def load_at(
    context: Any, builder: ir.IRBuilder, array: nt.Array, value: ir.Value, offset: ir.Value, pointee: Any
) -> ir.Value:
    """Load element `offset` of the array, as `pointee`."""
    loaded = builder.load(address_of(context, builder, array, value, offset, pointee))
    loaded.align = 1
    return loaded


def store_at(
    context: Any, builder: ir.IRBuilder, array: nt.Array, value: ir.Value, offset: ir.Value, stored: ir.Value
) -> None:
    builder.store(stored, address_of(context, builder, array, value, offset, stored.type)).align = 1


def element_bits(array: nt.Type, purpose: str) -> ir.VectorType:
    """Return sixteen elements of an array as they lie in memory. Raises numba's TypingError for other than our
    dtypes.
    """
    if not isinstance(array, nt.Array) or array.layout != "C" or array.dtype not in VECTORS:
        raise TypingError(f"cannot {purpose} {array}: needs a C-contiguous array of float32 or integers up to 32 bits")
    return VECTORS[array.dtype]


@intrinsic
def load(typing: Any, array: Any, offset: Any) -> Any:
    """Return sixteen consecutive elements: f32x16 of a float32 array, i32x16 of an integer array (8, 16, 32 bits)."""
    bits = element_bits(array, "load from")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        value = load_at(context, builder, array, args[0], args[1], bits)
        if bits in (FLOATS, WORDS):
            return value
        return builder.sext(value, WORDS) if array.dtype.signed else builder.zext(value, WORDS)

    return (f32x16 if bits is FLOATS else i32x16)(array, nt.intp), codegen


@intrinsic
def store(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Store f32x16 to sixteen elements of a float32 array, i32x16 cut to the width of an integer array's elements."""
    bits = element_bits(array, "store to")
    if value != (f32x16 if bits is FLOATS else i32x16):
        raise TypingError(f"cannot store {value} to {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        lanes = args[2] if bits in (FLOATS, WORDS) else builder.trunc(args[2], bits)
        store_at(context, builder, array, args[0], args[1], lanes)
        return context.get_dummy_value()

    return nt.void(array, nt.intp, value), codegen


def _has(context: Any, *features: str) -> bool:
    """Return whether the target processor is an x86 with one of these features (name those that imply the one you
    need).
    """
    triple, _, known = context.codegen().magic_tuple()
    return triple.startswith("x86_64") and not {f"+{f}" for f in features}.isdisjoint(known.split(","))


def _call_x86(builder: ir.IRBuilder, name: str, *operands: ir.Value) -> ir.Value:
    """Call LLVM's intrinsic for an x86, whose result is of the first operand's type."""
    function_type = ir.FunctionType(operands[0].type, [each.type for each in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}"), operands)


@intrinsic
def lookup(typing: Any, table: Any, at: Any, index: Any) -> Any:
    """Return table[at + index] in each lane, as i32x16: an int8 table, of which sixteen entries are used, index 0 …
    15.
    """
    if not isinstance(table, nt.Array) or table.dtype != nt.int8 or index != i32x16:
        raise TypingError(f"cannot look up {index} in {table}: needs an int8 table and i32x16")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        entries = load_at(context, builder, table, args[0], args[1], BYTES)
        numbers = builder.trunc(args[2], BYTES)
        if _has(context, "ssse3", "avx", "avx2"):
            return builder.sext(_call_x86(builder, "ssse3.pshuf.b.128", entries, numbers), WORDS)
        result = ir.Constant(BYTES, ir.Undefined)
        for i in range(LANES):
            number = builder.zext(builder.extract_element(numbers, ir.Constant(WORD, i)), WORD)
            result = builder.insert_element(result, builder.extract_element(entries, number), ir.Constant(WORD, i))
        return builder.sext(result, WORDS)

    return i32x16(table, nt.intp, i32x16), codegen


def _pick(entries: int) -> Any:
    """Return signature and code of table[index % entries] in each lane; its table is its own aligned `entries`
    lanes.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        table, index = args
        if _has(context, "avx512f"):
            if entries == 8:
                index = builder.and_(index, ir.Constant(WORDS, [7] * LANES))
                index = builder.or_(index, ir.Constant(WORDS, [i & 8 for i in range(LANES)]))
            wide = {4: "avx512.vpermilvar.ps.512", 8: "avx512.permvar.sf.512"}[entries]
            return _call_x86(builder, wide, table, index)
        if _has(context, "avx2"):
            half = {4: "avx.vpermilvar.ps.256", 8: "avx2.permps"}[entries]
            eight = [list(range(i, i + 8)) for i in (0, 8)]
            low, high = (_call_x86(builder, half, *(_shuffle(builder, a, a, pick) for a in args)) for pick in eight)
            return _shuffle(builder, low, high, list(range(LANES)))
        places = [[i // entries * entries + k for i in range(LANES)] for k in range(entries)]
        candidates = [_shuffle(builder, table, table, place) for place in places]
        bit = 1
        while len(candidates) > 1:
            masked = builder.and_(index, ir.Constant(WORDS, [bit] * LANES))
            odd = builder.icmp_signed("!=", masked, ir.Constant(WORDS, [0] * LANES))
            candidates = [builder.select(odd, b, a) for a, b in zip(candidates[::2], candidates[1::2], strict=True)]
            bit *= 2
        return candidates[0]

    return f32x16(f32x16, i32x16), codegen


@intrinsic
def pick_of_four(typing: Any, table: Any, index: Any) -> Any:
    """Return table[index % 4] in each lane, where the table is the lane's own four of an f32x16: lanes 0 … 3, 4 …
    7, …
    """
    return _pick(4)


@intrinsic
def pick_of_eight(typing: Any, table: Any, index: Any) -> Any:
    """Return table[index % 8] in each lane, where the table is the lane's own half of an f32x16: lanes 0 … 7 or 8 …
    15.
    """
    return _pick(8)


def _lane_offset(context: Any, builder: ir.IRBuilder, offsets: nt.Array, args: list[ir.Value], i: int) -> ir.Value:
    """Return offsets[i] + at, of arguments that begin: an array, offsets, at."""
    return builder.add(load_at(context, builder, offsets, args[1], ir.Constant(INDEX, i), INDEX), args[2])


def _put(array: nt.Array, offsets: nt.Array, operands: list[nt.Type], parts: Callable[..., list[ir.Value]]) -> Any:
    """Return signature and code that store parts(context, builder, operands)[i] to bytes offsets[i] + at of a uint8
    array.
    """
    if array.dtype != nt.uint8 or offsets.dtype != nt.int64:
        raise TypingError(f"needs a uint8 array and int64 offsets, not {array} and {offsets}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        for i, part in enumerate(parts(context, builder, *args[3:])):
            store_at(context, builder, array, args[0], _lane_offset(context, builder, offsets, args, i), part)
        return context.get_dummy_value()

    return nt.void(array, offsets, nt.intp, *operands), codegen


def _put_low_bits(array: nt.Array, offsets: nt.Array, bits: ir.IntType) -> Any:
    def parts(context: Any, builder: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
        lanes = value if bits is WORD else builder.trunc(value, ir.VectorType(bits, LANES))
        return [builder.extract_element(lanes, ir.Constant(WORD, i)) for i in range(LANES)]

    return _put(array, offsets, [i32x16], parts)


def _put_columns(
    array: nt.Array, offsets: nt.Array, words: nt.Array, count: int, turn: Callable[..., list[ir.Value]]
) -> Any:
    """Return `count` times sixteen words, turned from columns to a part for each lane."""
    if words.dtype != nt.int32:
        raise TypingError(f"cannot put {words} by {offsets} into {array}")

    def parts(context: Any, builder: ir.IRBuilder, value: ir.Value, at: ir.Value) -> list[ir.Value]:
        starts = [builder.add(at, ir.Constant(INDEX, LANES * k)) for k in range(count)]
        return turn(builder, [load_at(context, builder, words, value, start, WORDS) for start in starts])

    return _put(array, offsets, [words, nt.intp], parts)


@intrinsic
def put_words(typing: Any, array: Any, offsets: Any, at: Any, value: Any) -> Any:
    """Store each lane's 32 bits, little endian, in the uint8 array from byte offsets[lane] + at on (offsets: int64
    (16,)).
    """
    return _put_low_bits(array, offsets, WORD)


@intrinsic
def put_halves(typing: Any, array: Any, offsets: Any, at: Any, value: Any) -> Any:
    """Store each lane's low 16 bits, little endian, in the uint8 array from byte offsets[lane] + at on."""
    return _put_low_bits(array, offsets, SHORT)


@intrinsic
def put_quads(typing: Any, array: Any, offsets: Any, at: Any, words: Any, words_at: Any) -> Any:
    """Store four words of each lane in sixteen blocks.

    Word k of lane i, words[words_at + 16 * k + i] (int32), goes to bytes offsets[i] + at + 4 * k … of the uint8 array.
    """

    def turn(builder: ir.IRBuilder, columns: list[ir.Value]) -> list[ir.Value]:
        quads = _quads(builder, columns)
        return [_shuffle(builder, quads[i % 4], quads[i % 4], [i - i % 4 + k for k in range(4)]) for i in range(LANES)]

    return _put_columns(array, offsets, words, 4, turn)


@intrinsic
def put_tile(typing: Any, array: Any, offsets: Any, at: Any, words: Any, words_at: Any) -> Any:
    """Store sixteen words of each lane, as `put_quads`: the inverse of `transpose_tile`."""
    return _put_columns(array, offsets, words, LANES, _transposed)


QUARTERS = (0, 4, 8, 12)  # the first lanes of the 128-bit parts that shuffles work on


def _shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, pick: list[int]) -> ir.Value:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(WORD, len(pick)), pick))


def _quads(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Return the columns of four vectors of sixteen words, as four vectors: quarter l of vector c is column 4 * l +
    c.
    """
    low_words, high_words, low_pairs, high_pairs = (
        [q + i for q in QUARTERS for i in each]
        for each in ((0, 16, 1, 17), (2, 18, 3, 19), (0, 1, 16, 17), (2, 3, 18, 19))
    )
    a, b, c, d = rows
    halves = [(_shuffle(builder, a, b, pick), _shuffle(builder, c, d, pick)) for pick in (low_words, high_words)]
    return [_shuffle(builder, p, q, pick) for p, q in halves for pick in (low_pairs, high_pairs)]


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Return sixteen vectors of sixteen words, rows and columns exchanged, in 64 two-register shuffles."""
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
    """Transpose sixteen elements of sixteen blocks, block i into lane i.

    target[target_at + 16 * k + i] = source[offsets[i] + at + k] for k, i < 16; both float32 or both 32-bit integers,
    offsets int64 (16,). Blocks may be the same one.
    """
    element = element_bits(source, "transpose from")
    if element not in (FLOATS, WORDS) or element_bits(target, "transpose to") != element or offsets.dtype != nt.int64:
        raise TypingError(f"cannot transpose {source} by {offsets} into {target}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        starts = [_lane_offset(context, builder, offsets, args, i) for i in range(LANES)]
        rows = [load_at(context, builder, source, args[0], start, WORDS) for start in starts]
        for k, column in enumerate(_transposed(builder, rows)):
            store_at(context, builder, target, args[3], builder.add(args[4], ir.Constant(INDEX, LANES * k)), column)
        return context.get_dummy_value()

    return nt.void(source, offsets, nt.intp, target, nt.intp), codegen


@inlined
def transpose(source: NDArray[Any], offsets: NDArray[np.int64], width: int, target: NDArray[Any]) -> None:
    """Lay sixteen blocks side by side: target[16 * k + i] = source[offsets[i] + k] for k < width, a multiple of 16."""
    for at in range(0, width, LANES):
        transpose_tile(source, offsets, at, target, LANES * at)


PAGE = 1024  # floats


def rooms(*counts: int) -> list[NDArray[Any]]:
    """Allocate arrays for kernels, which make none themselves: 16 floats (or other 32 bits) times each count.

    Each starts on a page: loads within a cache line are faster, and equal offsets in two such arrays don't look to the
    processor like a load from what was just stored.
    """
    sizes = [-(-LANES * count // PAGE) * PAGE for count in counts]
    whole = np.empty(sum(sizes) + PAGE, np.float32)
    starts = itertools.accumulate(sizes, initial=-whole.ctypes.data // 4 % PAGE)
    return [whole[start : start + LANES * count] for start, count in zip(starts, counts, strict=False)]


@inlined_once
def block_offsets(first: int, count: int, size: int, offsets: NDArray[np.int64]) -> None:
    """Compute offsets[i] = size * (first + i), but never past the last of `count` blocks.

    So the tail of an array fills its spare lanes with copies of the last block: they compute and write the same bytes.
    """
    for i in range(LANES):
        offsets[i] = size * min(first + i, count - 1)
