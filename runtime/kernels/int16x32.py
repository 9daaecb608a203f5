"""Thirty-two 16-bit integers as one numba value, for products of quantized weights with inputs.

`i16x32`, in addition to `quants.kernels.lanes`' types. Products of pairs are summed to i32x16, from which LLVM makes
`vpmaddwd` or `smlal`.
"""

import functools
from typing import Any

from quants.kernels.lane_memory import address_of, load_at
from quants.kernels.lanes import BYTE, FLOAT, FLOATS, INDEX, LANES, SHORT, WORD, WORDS, LaneType, f32x16, i32x16, splat
from quants.kernels.numba_internals import UniTuple, cgutils, host_features, intrinsic, ir, nt

WIDE = 2 * LANES
VECTOR = ir.VectorType(SHORT, WIDE)
CACHE_LINE = 64
i16x32 = LaneType("i16x32", VECTOR, nt.Integer)


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return the target processor's features by LLVM's names, each with its +."""
    return frozenset(host_features().split(","))


def has(context: Any, *features: str) -> bool:
    """Return whether the target processor is an x86 with all these features."""
    triple, _, known = context.codegen().magic_tuple()
    return triple.startswith("x86_64") and {f"+{feature}" for feature in features} <= set(known.split(","))


def _from_memory(read: Any, result: Any) -> Any:
    """Return an intrinsic of an array and an offset. read(context, builder, load): load(type) reads from there."""

    @intrinsic
    def made(typing: Any, array: Any, at: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
            return read(
                context, builder, lambda llvm_type: load_at(context, builder, array, args[0], args[1], llvm_type)
            )

        return result(array, nt.intp), codegen

    return made


def _nibble_bytes(builder: ir.IRBuilder, load: Any) -> ir.Value:
    """Return of 16 bytes the low halves, then the high ones: 32 bytes."""
    half = load(ir.VectorType(INDEX, 2))
    twice = builder.shuffle_vector(half, half, ir.Constant(ir.VectorType(WORD, 4), [0, 1, 0, 1]))
    shifted = builder.lshr(twice, ir.Constant(twice.type, [0, 0, 4, 4]))  # bits that cross bytes are masked out
    bytes_ = ir.VectorType(BYTE, WIDE)
    return builder.and_(builder.bitcast(shifted, bytes_), ir.Constant(bytes_, [15] * WIDE))


def _nibbles(context: Any, builder: ir.IRBuilder, load: Any) -> ir.Value:
    return builder.zext(_nibble_bytes(builder, load), VECTOR)


def _every_half(context: Any, builder: ir.IRBuilder, load: Any) -> ir.Value:
    return halves_of(context, builder, splat(builder, load(SHORT), ir.VectorType(SHORT, LANES)), LANES)


def half_of(context: Any, builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return one float16's bits as float32."""
    first = ir.Constant(WORD, 0)
    eight = builder.insert_element(ir.Constant(ir.VectorType(SHORT, 8), [0] * 8), bits, first)
    return builder.extract_element(halves_of(context, builder, eight, 8), first)


def halves_of(context: Any, builder: ir.IRBuilder, bits: ir.Value, count: int) -> ir.Value:
    """Return float16 bits as float32."""
    floats = ir.VectorType(FLOAT, count)
    if has(context, "f16c"):
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), count)), floats)
    words = ir.VectorType(WORD, count)

    def each(number: int) -> ir.Value:
        return ir.Constant(words, [number] * count)

    wide = builder.zext(bits, words)
    size = builder.shl(builder.and_(wide, each(0x7FFF)), each(13))
    # an exponent of 5 bits read as one of 8: 112 too low
    value = builder.fmul(builder.bitcast(size, floats), ir.Constant(floats, [2.0**112] * count))
    endless = builder.icmp_unsigned(">=", size, each(0x0F800000))
    value = builder.select(endless, builder.or_(size, each(0x7F800000)), builder.bitcast(value, words))
    return builder.bitcast(builder.or_(value, builder.shl(builder.and_(wide, each(0x8000)), each(16))), floats)


load_shorts = _from_memory(lambda context, builder, load: load(VECTOR), i16x32)  # of an int16 array
load_bytes = _from_memory(  # 32 unsigned bytes
    lambda context, builder, load: builder.zext(load(ir.VectorType(BYTE, WIDE)), VECTOR), i16x32
)
load_signed = _from_memory(  # 32 signed bytes
    lambda context, builder, load: builder.sext(load(ir.VectorType(BYTE, WIDE)), VECTOR), i16x32
)
load_nibbles = _from_memory(_nibbles, i16x32)  # of 16 bytes the low halves, then the high ones
load_half = _from_memory(  # a float16
    lambda context, builder, load: half_of(context, builder, load(SHORT)), nt.float32
)
every_half = _from_memory(_every_half, f32x16)  # a float16 in all lanes
load_halves = _from_memory(  # 16 float16
    lambda context, builder, load: halves_of(context, builder, load(ir.VectorType(SHORT, LANES)), LANES), f32x16
)


load_bfloats = _from_memory(  # 16 bfloat16
    lambda context, builder, load: builder.bitcast(
        builder.shl(builder.zext(load(ir.VectorType(SHORT, LANES)), WORDS), ir.Constant(WORDS, [16] * LANES)), FLOATS
    ),
    f32x16,
)
load_floats = _from_memory(lambda context, builder, load: load(FLOATS), f32x16)  # of any array, by its elements
load_small = _from_memory(  # 16 signed bytes
    lambda context, builder, load: builder.sext(load(ir.VectorType(BYTE, LANES)), WORDS), i32x16
)
load_word = _from_memory(lambda context, builder, load: load(WORD), nt.int32)  # 4 bytes


def _with_scalar(instruction: str) -> Any:
    """Return an intrinsic of i16x32 and an integer that is spread over its lanes."""

    @intrinsic
    def made(typing: Any, a: Any, scalar: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
            return getattr(builder, instruction)(args[0], splat(builder, builder.trunc(args[1], SHORT), VECTOR))

        return i16x32(i16x32, nt.int64), codegen

    return made


masked, shifted_right, shifted_left, less = map(_with_scalar, ("and_", "lshr", "shl", "sub"))


@intrinsic
def joined(typing: Any, a: Any, b: Any) -> Any:
    """Return a | b"""
    return i16x32(i16x32, i16x32), lambda context, builder, signature, args: builder.or_(*args)


@intrinsic
def bits_of(typing: Any, word: Any) -> Any:
    """Return bit i of an int32 in lane i: 0 or 1."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return builder.zext(builder.bitcast(args[0], ir.VectorType(ir.IntType(1), WIDE)), VECTOR)

    return i16x32(nt.int32), codegen


@intrinsic
def looked_up(typing: Any, table: Any, array: Any, at: Any) -> Any:
    """Return table[nibble] of sixteen int8, for the nibbles of 16 bytes in the order of `load_nibbles`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        bytes_ = ir.VectorType(BYTE, WIDE)
        zero = ir.Constant(INDEX, 0)
        entries = load_at(context, builder, table, args[0], zero, ir.VectorType(BYTE, LANES))
        twice = ir.Constant(ir.VectorType(WORD, WIDE), [i % LANES for i in range(WIDE)])
        entries = builder.shuffle_vector(entries, entries, twice)
        index = _nibble_bytes(builder, lambda llvm_type: load_at(context, builder, array, args[1], args[2], llvm_type))
        if has(context, "avx2"):
            llvm_type = ir.FunctionType(bytes_, [bytes_, bytes_])
            shuffle = cgutils.get_or_insert_function(builder.module, llvm_type, "llvm.x86.avx2.pshuf.b")
            return builder.sext(builder.call(shuffle, [entries, index]), VECTOR)
        result = ir.Constant(bytes_, ir.Undefined)
        for i in range(WIDE):
            lane = ir.Constant(WORD, i)
            entry = builder.extract_element(entries, builder.zext(builder.extract_element(index, lane), WORD))
            result = builder.insert_element(result, entry, lane)
        return builder.sext(result, VECTOR)

    return i16x32(table, array, nt.intp), codegen


@intrinsic
def dot(typing: Any, a: Any, b: Any) -> Any:
    """Return sums of the products of neighbours: lane i is a[2i] * b[2i] + a[2i + 1] * b[2i + 1], i32x16."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        words = [builder.sext(arg, ir.VectorType(WORD, WIDE)) for arg in args]
        products = builder.mul(*words)
        even, odd = (ir.Constant(WORDS, list(range(first, WIDE, 2))) for first in (0, 1))
        return builder.add(*(builder.shuffle_vector(products, products, pick) for pick in (even, odd)))

    return i32x16(i16x32, i16x32), codegen


def _permuted(pick: Any) -> Any:
    """Return an intrinsic that takes lanes pick(k) of an f32x16, where k is a literal."""

    @intrinsic(prefer_literal=True)
    def made(typing: Any, a: Any, k: Any) -> Any:
        lanes = ir.Constant(WORDS, pick(k.literal_value))
        return f32x16(f32x16, k), lambda context, builder, signature, args: builder.shuffle_vector(
            args[0], args[0], lanes
        )

    return made


lanes_of = _permuted(lambda k: [2 * k] * 8 + [2 * k + 1] * 8)  # lanes 2k and 2k + 1, eight times each
each_twice = _permuted(lambda k: [k + i // 2 for i in range(LANES)])  # lanes k, k, k + 1, k + 1, … k + 7


@intrinsic
def six_bit_numbers(typing: Any, array: Any, at: Any) -> Any:
    """Return the eight scales, then the eight minima, of 6 bits in the 12 bytes after the first 4, as f32x16."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        four = ir.VectorType(WORD, 4)
        words = load_at(context, builder, array, args[0], args[1], four)

        def constant(*values: int) -> ir.Value:
            return ir.Constant(four, list(values))

        low = builder.shuffle_vector(words, words, constant(1, 3, 2, 3))
        low = builder.and_(builder.lshr(low, constant(0, 0, 0, 4)), constant(*[0x3F3F3F3F, 0x0F0F0F0F] * 2))
        high = builder.shuffle_vector(words, words, constant(1, 1, 2, 2))
        high = builder.and_(builder.lshr(high, constant(2, 2, 2, 2)), constant(*[0, 0x30303030] * 2))
        return builder.uitofp(builder.bitcast(builder.or_(low, high), ir.VectorType(BYTE, LANES)), FLOATS)

    return f32x16(array, nt.intp), codegen


@intrinsic
def half_pair(typing: Any, array: Any, at: Any) -> Any:
    """Return two float16: the first in lanes 0 … 7, the negative second in the others."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        eight = ir.VectorType(SHORT, 8)
        pair = ir.Constant(ir.VectorType(WORD, 4), [0] * 4)
        pair = builder.insert_element(
            pair, load_at(context, builder, array, args[0], args[1], WORD), ir.Constant(WORD, 0)
        )
        halves = halves_of(context, builder, builder.bitcast(pair, eight), 8)
        spread = builder.shuffle_vector(halves, halves, ir.Constant(WORDS, [0] * 8 + [1] * 8))
        return builder.fmul(spread, ir.Constant(FLOATS, [1.0] * 8 + [-1.0] * 8))

    return f32x16(array, nt.intp), codegen


@intrinsic
def stack_memory(typing: Any) -> Any:
    """Return the address of 256 bytes of stack memory, valid until the function ends."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        memory = cgutils.alloca_once(builder, ir.ArrayType(FLOAT, 4 * LANES))
        memory.align = CACHE_LINE
        return builder.ptrtoint(memory, INDEX)

    return nt.int64(), codegen


@intrinsic
def same_address(typing: Any, address: Any) -> Any:
    """Return the address; on x86 in a way opaque to LLVM: values stored there are loaded, not kept in registers.

    A load spreads a number over lanes at no cost, where taking it out of a register takes one or two shuffles.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        if not has(context):
            return args[0]
        function_type = ir.FunctionType(INDEX, [INDEX])
        return builder.call(ir.InlineAsm(function_type, "", "=r,0", side_effect=False), args)

    return nt.int64(nt.int64), codegen


@intrinsic
def bytes_as_floats(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the sixteen unsigned bytes of four int32, as f32x16."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        four = ir.Constant(ir.VectorType(WORD, 4), ir.Undefined)
        for i, word in enumerate(args):
            four = builder.insert_element(four, word, ir.Constant(WORD, i))
        return builder.uitofp(builder.bitcast(four, ir.VectorType(BYTE, LANES)), FLOATS)

    return f32x16(nt.int32, nt.int32, nt.int32, nt.int32), codegen


@intrinsic
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        function_type = ir.FunctionType(FLOATS, [FLOATS] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.fma.v16f32"), args)

    return f32x16(f32x16, f32x16, f32x16), codegen


@intrinsic
def sum_of_lanes(typing: Any, a: Any) -> Any:
    """Return the sum of the lanes, in four halving steps."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        value = args[0]
        for half in (8, 4, 2, 1):
            other = builder.shuffle_vector(value, value, ir.Constant(WORDS, [i ^ half for i in range(LANES)]))
            value = builder.fadd(value, other)
        return builder.extract_element(value, ir.Constant(WORD, 0))

    return nt.float32(f32x16), codegen


@intrinsic
def sums_of_lanes(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return `sum_of_lanes` of four at once, in the same order: a tuple."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        def halved(first: ir.Value, second: ir.Value, size: int) -> ir.Value:
            """Return groups of `size` lanes of two vectors, halved: those of the first, then those of the second."""
            left = [i for start in range(0, 2 * LANES, size) for i in range(start, start + size // 2)]
            picks = [[i + more for i in left] for more in (0, size // 2)]
            return builder.fadd(*(builder.shuffle_vector(first, second, ir.Constant(WORDS, pick)) for pick in picks))

        value = halved(halved(args[0], args[1], 16), halved(args[2], args[3], 16), 8)
        for step in (2, 1):
            other = builder.shuffle_vector(value, value, ir.Constant(WORDS, [i ^ step for i in range(LANES)]))
            value = builder.fadd(value, other)
        sums = [builder.extract_element(value, ir.Constant(WORD, i)) for i in range(0, LANES, 4)]
        return context.make_tuple(builder, signature.return_type, sums)

    return UniTuple(nt.float32, 4)(f32x16, f32x16, f32x16, f32x16), codegen


def fetch(context: Any, builder: ir.IRBuilder, address: ir.Value, to_write: int = 0, cache: int = 1) -> None:
    """Prefetch the cache line of a byte's address, to the first or the second cache."""
    function_type = ir.FunctionType(ir.VoidType(), [address.type, WORD, WORD, WORD])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
    builder.call(function, [address, *(ir.Constant(WORD, n) for n in (to_write, 4 - cache, 1))])


def _prefetch(to_write: int, cache: int = 1) -> Any:
    @intrinsic
    def prefetch(typing: Any, array: Any, at: Any) -> Any:
        """Prefetch the cache line of element `at`, which may be past the array's end."""

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
            fetch(context, builder, address_of(context, builder, array, args[0], args[1], BYTE), to_write, cache)
            return context.get_dummy_value()

        return nt.void(array, nt.intp), codegen

    return prefetch


prefetch, prefetch_to_write, prefetch_later = _prefetch(0), _prefetch(1), _prefetch(0, 2)


@intrinsic
def touch(typing: Any, array: Any, at: Any) -> Any:
    """Read the eight bytes around element `at`, even if the result is unused."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        address = builder.ptrtoint(address_of(context, builder, array, args[0], args[1], BYTE), INDEX)
        address = builder.and_(address, ir.Constant(INDEX, -8))
        builder.load_atomic(builder.inttoptr(address, INDEX.as_pointer()), "monotonic", 8)
        return context.get_dummy_value()

    return nt.void(array, nt.intp), codegen
