"""Sixteen numbers side by side as one numba value: kernels in plain Python that keep their data in vector registers.

    @kernel
    def double(x, out):                     # x, out: float32 arrays of a multiple of 16 values
        for i in range(0, x.size, 16):
            store(out, i, load(x, i) * np.float32(2))

Types: `f32x16`, `i32x16`, `boolx16` (a mask). LLVM splits them where registers are narrower (AVX2, SSE, NEON) and never
fuses or reorders float operations, so results are the same on every machine.

    + - * / and unary -        on f32x16; one operand may be a float32 scalar (a float64 does not compile, on purpose)
    + - * & | ^ << >> and ~ -  on i32x16, wrapping, >> keeps the sign; one operand may be an integer scalar
    < <= > >= == !=            on either, give a boolx16; false for NaN, but != which is true
    & | ^ ~                    on boolx16

Loads and stores take a C-contiguous array of any shape and an offset in elements from its first; nothing is checked.
`transpose` lays many blocks side by side, so that a lane works on one block: sums then run in the order of a scalar
loop over the block, as bit-exact formats need.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import llvmlite.binding
import numba.core.types as nt
import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, config
from numba.core.errors import TypingError
from numba.core.types.misc import unliteral
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model
from numpy.typing import NDArray

LANES = 16
Lanes = Any  # in annotations: a value of one of the lane types

# A function that is always inlined into the kernels that call it; it cannot be called from Python.
inlined = functools.partial(
    njit, nogil=True, error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
)


def inlined_once(function: Callable[..., Any]) -> Any:
    """`inlined`, but compiled once for constants and variables alike, not anew for every constant it is called with.

    For functions that do not choose code by a constant; LLVM still finds the constants where it inlines.
    """
    compiled = inlined(function)
    template = compiled.get_call_template
    compiled.get_call_template = lambda types, names: template(tuple(map(unliteral, types)), names)
    return compiled


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point on its first call, or load it from numba's cache. No fastmath: bytes must not vary.

    numba looks at the file of the function alone to see whether a cached kernel is out of date. Ours consist of
    functions from this folder, too, so that a change of any of these files counts.
    """
    compiled = njit(nogil=True, cache=True, error_model="numpy")(function)
    cached = getattr(compiled._cache, "_cache_file", None)  # numba offers no public way
    if cached is not None:
        cached._source_stamp = (cached._source_stamp, _kernels_changed())
    return compiled


def is_cached(compiled: Any) -> bool:
    """Whether a kernel was compiled before, for whatever types; True where there is no cache to tell."""
    cached = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    return cached is None or bool(cached._load_index())


@functools.cache
def _kernels_changed() -> float:
    """When a file of this folder was last changed."""
    return max(file.stat().st_mtime for file in Path(__file__).parent.glob("*.py"))


BIT, BYTE, SHORT, WORD, INDEX, FLOAT = *(ir.IntType(n) for n in (1, 8, 16, 32, 64)), ir.FloatType()
BITS, BYTES, SHORTS, WORDS, FLOATS = (ir.VectorType(scalar, LANES) for scalar in (BIT, BYTE, SHORT, WORD, FLOAT))


class LaneType(nt.Type):
    """A numba type that is one LLVM vector. Scalars of class `scalar` may be spread over its lanes."""

    def __init__(self, name: str, vector: ir.VectorType, scalar: Any) -> None:
        super().__init__(name=name)
        self.vector = vector
        self.scalar = scalar


@register_model(LaneType)
class LaneModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no types for mypy
    """Passed, kept and returned as the vector itself."""

    def __init__(self, manager: Any, lanes: LaneType) -> None:
        super().__init__(manager, lanes, lanes.vector)


f32x16 = LaneType("f32x16", FLOATS, nt.float32)
i32x16 = LaneType("i32x16", WORDS, nt.Integer)
boolx16 = LaneType("boolx16", BITS, nt.boolean)

Emit = Callable[..., ir.Value]  # emit(builder, *operands) → result, all as LLVM values


def _splat(builder: ir.IRBuilder, value: ir.Value, vector: ir.VectorType) -> ir.Value:
    lane0 = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(WORD, 0))
    zeros = ir.Constant(ir.VectorType(WORD, vector.count), [0] * vector.count)
    return builder.shuffle_vector(lane0, ir.Constant(vector, ir.Undefined), zeros)


def _matches(found: nt.Type, wanted: Any) -> bool:
    return isinstance(found, wanted) if isinstance(wanted, type) else bool(found == wanted)


def _define(function: Any, emit: Emit, result: nt.Type, *operands: Any) -> None:
    """Let compiled code call `function` (ours, or an operator) on operands of these numba types.

    In place of lanes it may get a scalar, as long as one operand has lanes. An operand may be a class of numba types.
    """
    lanes = [o for o in operands if isinstance(o, LaneType)]
    choices = [(o, o.scalar) if isinstance(o, LaneType) and len(lanes) > 1 else (o,) for o in operands]
    signatures = [s for s in itertools.product(*choices) if not lanes or any(isinstance(o, LaneType) for o in s)]

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = function
        metadata: ClassVar = {"target": "cpu"}  # asked before all that numba knows of operators, which is much

        def generic(self, found: tuple[nt.Type, ...], names: Any) -> Any:
            fits = any(len(found) == len(s) and all(map(_matches, found, s)) for s in signatures)
            return signature(result, *found) if fits and not names else None

    infer_global(function, nt.Function(Template))

    def lower(context: Any, builder: ir.IRBuilder, found_signature: Any, values: list[ir.Value]) -> ir.Value:
        ready = list(values)
        for i, (found, wanted) in enumerate(zip(found_signature.args, operands, strict=True)):
            if isinstance(wanted, LaneType) and found != wanted:
                scalar = nt.int32 if wanted is i32x16 else found
                ready[i] = _splat(builder, context.cast(builder, values[i], found, scalar), wanted.vector)
        return emit(builder, *ready)

    for s in signatures:
        lower_builtin(function, *s)(lower)


def _lanewise(result: nt.Type, *operands: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn emit(builder, *operands) into a function that compiled code calls without the builder."""

    def wrap(emit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(emit)
        def in_python(*_: Any) -> Any:
            raise TypeError(f"{emit.__name__} exists in compiled code only")

        _define(in_python, emit, result, *operands)
        return in_python

    return wrap


# Operators


def _binary(instruction: str) -> Emit:
    """The emitter of a two-operand LLVM instruction, under llvmlite's name for it."""
    return lambda builder, a, b: getattr(builder, instruction)(a, b)


def _compare(kind: str, sign: str) -> Emit:
    return lambda builder, a, b: getattr(builder, kind)(sign, a, b)


for _name, _instruction, _lanes in (
    ("add", "fadd", f32x16), ("sub", "fsub", f32x16), ("mul", "fmul", f32x16), ("truediv", "fdiv", f32x16),
    ("add", "add", i32x16), ("sub", "sub", i32x16), ("mul", "mul", i32x16), ("lshift", "shl", i32x16),
    ("rshift", "ashr", i32x16), ("and_", "and_", i32x16), ("or_", "or_", i32x16), ("xor", "xor", i32x16),
    ("and_", "and_", boolx16), ("or_", "or_", boolx16), ("xor", "xor", boolx16),
):  # fmt: skip
    for _operator in (getattr(operator, _name), getattr(operator, "i" + _name.strip("_"))):
        _define(_operator, _binary(_instruction), _lanes, _lanes, _lanes)
for _operator, _sign in (
    (operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="), (operator.eq, "=="),
):  # fmt: skip
    _define(_operator, _compare("fcmp_ordered", _sign), boolx16, f32x16, f32x16)
    _define(_operator, _compare("icmp_signed", _sign), boolx16, i32x16, i32x16)
_define(operator.ne, _compare("fcmp_unordered", "!="), boolx16, f32x16, f32x16)
_define(operator.ne, _compare("icmp_signed", "!="), boolx16, i32x16, i32x16)
_define(operator.neg, lambda builder, a: builder.fneg(a), f32x16, f32x16)
_define(operator.neg, lambda builder, a: builder.neg(a), i32x16, i32x16)
_define(operator.invert, lambda builder, a: builder.not_(a), i32x16, i32x16)
_define(operator.invert, lambda builder, a: builder.not_(a), boolx16, boolx16)

# Functions on lanes. The first parameter below is LLVM's builder: kernels leave it out.


def _call(builder: ir.IRBuilder, name: str, *operands: ir.Value) -> ir.Value:
    """Call the LLVM intrinsic `name` on operands with float lanes."""
    vector = operands[0].type
    kind = ir.FunctionType(vector, [vector] * len(operands))
    intrinsic_name = f"llvm.{name}.v{vector.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, intrinsic_name), operands)


@_lanewise(f32x16, nt.float32)
def every(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """A float32 scalar in every lane."""
    return _splat(builder, x, FLOATS)


@intrinsic
def every_int(typing: Any, x: Any) -> Any:
    """An integer scalar, cut to 32 bits, in every lane."""
    if not isinstance(x, nt.Integer):
        raise TypingError(f"cannot spread {x} over integer lanes")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return _splat(builder, builder.trunc(args[0], WORD), WORDS)

    return i32x16(nt.int64), codegen


@_lanewise(i32x16)
def lane_numbers(builder: ir.IRBuilder) -> ir.Value:
    """0, 1, … 15."""
    return ir.Constant(WORDS, list(range(LANES)))


def _smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@_lanewise(f32x16, f32x16, f32x16)
def smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """`a if a < b else b`: b where either is NaN, and where both are equal (zeros differ in sign)."""
    return _smaller(builder, a, b)


@_lanewise(f32x16, f32x16, f32x16)
def larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """`a if a > b else b`: b where either is NaN, and where both are equal (zeros differ in sign)."""
    return _larger(builder, a, b)


_define(smaller, lambda builder, a, b: builder.select(builder.icmp_signed("<", a, b), a, b), i32x16, i32x16, i32x16)
_define(larger, lambda builder, a, b: builder.select(builder.icmp_signed(">", a, b), a, b), i32x16, i32x16, i32x16)


def _where(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(mask, a, b)


@_lanewise(f32x16, boolx16, f32x16, f32x16)
def where(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """`a if mask else b`, of f32x16, i32x16 or boolx16; scalars are spread."""
    return _where(builder, mask, a, b)


_define(where, _where, i32x16, boolx16, i32x16, i32x16)
_define(where, _where, boolx16, boolx16, boolx16, boolx16)


@_lanewise(nt.int32, boolx16)
def mask_bits(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """The mask as a scalar: bit i is lane i. `== 0`: no lane, `== 65535`: all lanes."""
    return builder.zext(builder.bitcast(mask, SHORT), WORD)


@_lanewise(nt.boolean, boolx16)
def any_lane(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    return builder.icmp_unsigned("!=", builder.bitcast(mask, SHORT), ir.Constant(SHORT, 0))


@_lanewise(nt.boolean, boolx16)
def all_lanes(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    return builder.icmp_unsigned("==", builder.bitcast(mask, SHORT), ir.Constant(SHORT, 0xFFFF))


@_lanewise(f32x16, f32x16)
def round_even(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """To the nearest integer, ties to even."""
    return _call(builder, "rint", a)


def _nearest(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    count = a.type.count
    words, magic = ir.VectorType(WORD, count), ir.Constant(a.type, [12582912.0] * count)  # floats there are 1 apart
    bits = builder.and_(builder.bitcast(builder.fadd(a, magic), words), ir.Constant(words, [0x7FFFFF] * count))
    bits = builder.or_(bits, ir.Constant(words, [0x4B000000] * count))
    return builder.fsub(builder.bitcast(bits, a.type), magic)


@_lanewise(f32x16, f32x16)
def nearest(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """`round_even` for |a| < 2**22; beyond, and for NaN, a number that ggml's way to round in K formats gives, too."""
    return _nearest(builder, a)


@_lanewise(f32x16, f32x16)
def absolute(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    return _call(builder, "fabs", a)


@_lanewise(f32x16, f32x16, f32x16)
def with_sign(builder: ir.IRBuilder, magnitude: ir.Value, sign: ir.Value) -> ir.Value:
    """|magnitude| with the sign of `sign` (C's copysign)."""
    return _call(builder, "copysign", magnitude, sign)


@_lanewise(f32x16, f32x16)
def square_root(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """Correctly rounded."""
    return _call(builder, "sqrt", a)


@_lanewise(f32x16, i32x16)
def to_float(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """The float32 nearest to each integer."""
    return builder.sitofp(a, FLOATS)


@_lanewise(i32x16, f32x16)
def to_int(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """Towards zero. Some value for NaN and outside int32: never use it as an index unchecked."""
    return builder.fptosi(a, WORDS)


@_lanewise(i32x16, f32x16)
def float_bits(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """The IEEE bits of each float."""
    return builder.bitcast(a, WORDS)


@_lanewise(f32x16, i32x16)
def bits_float(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """The float with these IEEE bits."""
    return builder.bitcast(a, FLOATS)


@_lanewise(i32x16, i32x16, i32x16)
def shift_right(builder: ir.IRBuilder, a: ir.Value, count: ir.Value) -> ir.Value:
    """a >> count, zeros coming in from the left."""
    return builder.lshr(a, count)


def _extreme(sign: str) -> Emit:
    """The emitter of the extreme lane, in four halving steps; for floats as `larger` or `smaller` of pairs does it."""

    def emit(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
        undefined = ir.Constant(a.type, ir.Undefined)
        for half in (8, 4, 2, 1):
            b = builder.shuffle_vector(a, undefined, ir.Constant(WORDS, [i ^ half for i in range(LANES)]))
            first = builder.fcmp_ordered(sign, a, b) if a.type is FLOATS else builder.icmp_signed(sign, a, b)
            a = builder.select(first, a, b)
        return builder.extract_element(a, ir.Constant(WORD, 0))

    return emit


@_lanewise(nt.float32, f32x16)
def largest_lane(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """The greatest of the sixteen, a scalar of f32x16 (float32) or i32x16 (int32); some value where a lane is NaN."""
    return _extreme(">")(builder, a)


@_lanewise(nt.float32, f32x16)
def smallest_lane(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """The least of the sixteen, a scalar of f32x16 (float32) or i32x16 (int32); some value where a lane is NaN."""
    return _extreme("<")(builder, a)


_define(largest_lane, _extreme(">"), nt.int32, i32x16)
_define(smallest_lane, _extreme("<"), nt.int32, i32x16)


@_lanewise(f32x16, f32x16)
def smallest_of_half(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """In each lane the least of its half, lanes 0 … 7 or 8 … 15; some value where one of them is NaN."""
    for step in (4, 2, 1):
        b = builder.shuffle_vector(a, a, ir.Constant(WORDS, [i ^ step for i in range(LANES)]))
        a = builder.select(builder.fcmp_ordered("<", a, b), a, b)
    return a


@_lanewise(nt.int32, nt.int32)
def lowest_bit(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Number of the lowest bit that is set, so the first lane of `mask_bits`; 32 of 0."""
    return builder.cttz(bits, ir.Constant(BIT, 0))


@_lanewise(nt.float32, f32x16, nt.Integer)
def lane(builder: ir.IRBuilder, a: ir.Value, number: ir.Value) -> ir.Value:
    """The scalar in one lane, of f32x16 (float32) or i32x16 (int32)."""
    return builder.extract_element(a, number)


_define(lane, lambda builder, a, number: builder.extract_element(a, number), nt.int32, i32x16, nt.Integer)

# Memory


def _pointer(
    context: Any, builder: ir.IRBuilder, array: nt.Array, value: ir.Value, offset: ir.Value, pointee: Any
) -> ir.Value:
    """Address of element `offset` counted from the array's first, as a pointer to `pointee`."""
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [offset]), pointee.as_pointer())


def _element_bits(array: nt.Type, purpose: str) -> ir.VectorType:
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
    bits = _element_bits(array, "load from")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        value = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], bits))
        value.align = 1
        if bits in (FLOATS, WORDS):
            return value
        return builder.sext(value, WORDS) if array.dtype.signed else builder.zext(value, WORDS)

    return (f32x16 if bits is FLOATS else i32x16)(array, nt.intp), codegen


@intrinsic
def store(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """f32x16 to sixteen elements of a float32 array, i32x16 cut to the width of an integer array's elements."""
    bits = _element_bits(array, "store to")
    if value != (f32x16 if bits is FLOATS else i32x16):
        raise TypingError(f"cannot store {value} to {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        lanes = args[2] if bits in (FLOATS, WORDS) else builder.trunc(args[2], bits)
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], bits)
        builder.store(lanes, pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, nt.intp, value), codegen


@intrinsic
def gather(typing: Any, table: Any, index: Any) -> Any:
    """table[index] in each lane: f32x16 or i32x16 as `load` of that table. Indexes must lie within the table."""
    bits = _element_bits(table, "gather from")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        value = ir.Constant(bits, ir.Undefined)
        for i in range(LANES):
            number = ir.Constant(WORD, i)
            at = builder.sext(builder.extract_element(args[1], number), ir.IntType(64))
            value = builder.insert_element(value, builder.load(builder.gep(data, [at])), number)
        if bits in (FLOATS, WORDS):
            return value
        return builder.sext(value, WORDS) if table.dtype.signed else builder.zext(value, WORDS)

    return (f32x16 if bits is FLOATS else i32x16)(table, i32x16), codegen


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
        entries = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], BYTES))
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
            start = builder.load(_pointer(context, builder, offsets, args[1], ir.Constant(INDEX, i), INDEX))
            pointer = _pointer(context, builder, array, args[0], builder.add(start, args[2]), bits)
            builder.store(builder.extract_element(lanes, ir.Constant(WORD, i)), pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, offsets, nt.intp, i32x16), codegen


@intrinsic
def put_words(typing: Any, array: Any, offsets: Any, at: Any, value: Any) -> Any:
    """Each lane's 32 bits, little endian, to the uint8 array from byte offsets[lane] + at on (offsets: int64 (16,))."""
    return _put(array, offsets, WORD)


@intrinsic
def put_quads(typing: Any, array: Any, offsets: Any, at: Any, words: Any, words_at: Any) -> Any:
    """Four words of each lane to sixteen blocks.

    Word k of lane i, words[words_at + 16 * k + i] (int32), goes to bytes offsets[i] + at + 4 * k … of the uint8 array.
    """
    if array.dtype != nt.uint8 or offsets.dtype != nt.int64 or words.dtype != nt.int32:
        raise TypingError(f"cannot put {words} by {offsets} into {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        columns = []
        for k in range(4):
            start = builder.add(args[4], ir.Constant(INDEX, LANES * k))
            column = builder.load(_pointer(context, builder, words, args[3], start, WORDS))
            column.align = 1
            columns.append(column)
        for c, quads in enumerate(_quads(builder, columns)):
            for first in range(0, LANES, 4):
                pick = ir.Constant(ir.VectorType(WORD, 4), list(range(first, first + 4)))
                quad = builder.shuffle_vector(quads, ir.Constant(WORDS, ir.Undefined), pick)
                lane_number = ir.Constant(INDEX, first + c)
                start = builder.load(_pointer(context, builder, offsets, args[1], lane_number, INDEX))
                pointer = _pointer(context, builder, array, args[0], builder.add(start, args[2]), quad.type)
                builder.store(quad, pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, offsets, nt.intp, words, nt.intp), codegen


@intrinsic
def put_halves(typing: Any, array: Any, offsets: Any, at: Any, value: Any) -> Any:
    """Each lane's low 16 bits, little endian, to the uint8 array from byte offsets[lane] + at on."""
    return _put(array, offsets, SHORT)


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
    kind = _element_bits(source, "transpose from")
    if kind not in (FLOATS, WORDS) or _element_bits(target, "transpose to") != kind or offsets.dtype != nt.int64:
        raise TypingError(f"cannot transpose {source} by {offsets} into {target}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        rows = []
        for i in range(LANES):
            start = builder.load(_pointer(context, builder, offsets, args[1], ir.Constant(INDEX, i), INDEX))
            row = builder.load(_pointer(context, builder, source, args[0], builder.add(start, args[2]), WORDS))
            row.align = 1
            rows.append(row)
        for k, column in enumerate(_transposed(builder, rows)):
            at = builder.add(args[4], ir.Constant(INDEX, LANES * k))
            builder.store(column, _pointer(context, builder, target, args[3], at, WORDS)).align = 1
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
        columns = []
        for k in range(LANES):
            start = builder.add(args[4], ir.Constant(INDEX, LANES * k))
            column = builder.load(_pointer(context, builder, words, args[3], start, WORDS))
            column.align = 1
            columns.append(column)
        for i, row in enumerate(_transposed(builder, columns)):
            start = builder.load(_pointer(context, builder, offsets, args[1], ir.Constant(INDEX, i), INDEX))
            pointer = _pointer(context, builder, array, args[0], builder.add(start, args[2]), WORDS)
            builder.store(row, pointer).align = 1
        return context.get_dummy_value()

    return nt.void(array, offsets, nt.intp, words, nt.intp), codegen


# Several f32x16 in step. Where each operation waits for the one before, more of them at a time fill the wait.


def _define_wide(lanes: LaneType, mask: LaneType) -> None:
    """The operators of f32x16, and some of its functions, for a wider type."""
    for name, instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
        _define(getattr(operator, name), _binary(instruction), lanes, lanes, lanes)
        _define(getattr(operator, "i" + name), _binary(instruction), lanes, lanes, lanes)
    for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "==")):
        _define(getattr(operator, name), _compare("fcmp_ordered", sign), mask, lanes, lanes)
    _define(operator.ne, _compare("fcmp_unordered", "!="), mask, lanes, lanes)
    _define(operator.neg, lambda builder, a: builder.fneg(a), lanes, lanes)
    for name in ("and_", "or_"):
        _define(getattr(operator, name), _binary(name), mask, mask, mask)
        _define(getattr(operator, "i" + name.strip("_")), _binary(name), mask, mask, mask)
    _define(operator.invert, lambda builder, a: builder.not_(a), mask, mask)
    _define(smaller, _smaller, lanes, lanes, lanes)
    _define(larger, _larger, lanes, lanes, lanes)
    _define(where, _where, lanes, mask, lanes, lanes)
    _define(round_even, lambda builder, a: _call(builder, "rint", a), lanes, lanes)
    _define(nearest, _nearest, lanes, lanes)
    _define(absolute, lambda builder, a: _call(builder, "fabs", a), lanes, lanes)

    def any_of(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
        bits = ir.IntType(a.type.count)
        return builder.icmp_unsigned("!=", builder.bitcast(a, bits), ir.Constant(bits, 0))

    _define(any_lane, any_of, nt.boolean, mask)


def _features() -> str:
    """What numba compiles for, in LLVM's words."""
    if config.CPU_FEATURES is not None:
        return str(config.CPU_FEATURES)
    return str(llvmlite.binding.get_host_cpu_features().flatten())


GROUPS = 4 if "+avx512f" in _features() else 1  # how many f32x16 make a wide value: there is room in 32 long registers
wide = f32x16
if GROUPS > 1:
    wide = LaneType("f32wide", ir.VectorType(FLOAT, GROUPS * LANES), nt.float32)
    _define_wide(wide, LaneType("boolwide", ir.VectorType(BIT, GROUPS * LANES), nt.boolean))


def _is_alone(apart: nt.Type) -> bool:
    """A distance of None: one f32x16 instead of a wide value."""
    return bool(apart == nt.none)


def _lanes_apart(apart: nt.Type) -> LaneType:
    return f32x16 if _is_alone(apart) else wide


@intrinsic
def every_wide(typing: Any, x: Any, apart: Any) -> Any:
    """A float32 scalar in every lane of a wide value; of an f32x16 if `apart` is None."""
    lanes = _lanes_apart(apart)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return _splat(builder, args[0], lanes.vector)

    return lanes(nt.float32, nt.none if _is_alone(apart) else nt.intp), codegen


@intrinsic
def load_wide(typing: Any, array: Any, at: Any, apart: Any) -> Any:
    """GROUPS times sixteen floats: from `at` on, from `at + apart` on, … An f32x16 from `at` on if `apart` is None."""
    lanes = _lanes_apart(apart)
    if _element_bits(array, "load from") is not FLOATS:
        raise TypingError(f"cannot load {lanes} from {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        parts, at = [], args[1]
        for first in range(0, lanes.vector.count, LANES):
            at = builder.add(at, args[2]) if first else at
            part = builder.load(_pointer(context, builder, signature.args[0], args[0], at, FLOATS))
            part.align = 1
            parts.append(part)
        while len(parts) > 1:
            both = ir.Constant(ir.VectorType(WORD, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
            parts = [builder.shuffle_vector(parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
        return parts[0]

    return lanes(array, nt.intp, nt.none if _is_alone(apart) else nt.intp), codegen


@intrinsic
def store_wide(typing: Any, array: Any, at: Any, apart: Any, value: Any) -> Any:
    """To where `load_wide` would find it."""
    if _element_bits(array, "store to") is not FLOATS or value != _lanes_apart(apart):
        raise TypingError(f"cannot store {value} to {array} in groups {apart} apart")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        at = args[1]
        for first in range(0, value.vector.count, LANES):
            at = builder.add(at, args[2]) if first else at
            pick = ir.Constant(WORDS, list(range(first, first + LANES)))
            part = builder.shuffle_vector(args[3], ir.Constant(value.vector, ir.Undefined), pick)
            builder.store(part, _pointer(context, builder, signature.args[0], args[0], at, FLOATS)).align = 1
        return context.get_dummy_value()

    return nt.void(array, nt.intp, nt.none if _is_alone(apart) else nt.intp, value), codegen


@inlined
def transpose(source: NDArray[Any], offsets: NDArray[np.int64], width: int, target: NDArray[Any]) -> None:
    """Lay sixteen blocks side by side: target[16 * k + i] = source[offsets[i] + k] for k < width, a multiple of 16."""
    for at in range(0, width, LANES):
        transpose_tile(source, offsets, at, target, LANES * at)


@inlined_once
def float_lanes(count: int) -> NDArray[np.float32]:
    """Room for `count` times sixteen floats.

    It starts on a page: loads within a cache line are faster, and equal offsets in two such arrays don't look to the
    processor like a load from what was just stored.
    """
    room = np.empty(LANES * count + 1024, np.float32)
    skip = -room.ctypes.data % 4096 // 4
    return room[skip : skip + LANES * count]


@inlined_once
def int_lanes(count: int) -> NDArray[np.int32]:
    """Room for `count` times sixteen 32-bit integers, placed as `float_lanes`."""
    room = np.empty(LANES * count + 1024, np.int32)
    skip = -room.ctypes.data % 4096 // 4
    return room[skip : skip + LANES * count]


@inlined_once
def block_offsets(first: int, count: int, size: int, offsets: NDArray[np.int64]) -> None:
    """offsets[i] = size * (first + i), but never past the last of `count` blocks.

    So the tail of an array fills its spare lanes with copies of the last block: they compute and write the same bytes.
    """
    for i in range(LANES):
        offsets[i] = size * min(first + i, count - 1)
