"""Sixteen numbers side by side as one numba value: kernels in plain Python that keep their data in vector registers.

    @kernel
    def double(x, out):                     # x, out: float32 arrays of a multiple of 16 values
        for i in range(0, x.size, 16):
            store(out, i, load(x, i) * np.float32(2))

Types: `f32x16`, `i32x16`, `boolx16` (a mask). LLVM splits them where registers are narrower (AVX2, SSE, NEON) and never
fuses or reorders float operations, so results are the same on every machine.

    + - * / and unary -        on f32x16; one operand may be a float32 scalar (a float64 does not compile, on purpose)
    + - * & | ^ << >>          on i32x16, wrapping, >> keeps the sign; one operand may be an integer scalar
    < <= > >= == !=            on either, give a boolx16; false for NaN, but != which is true
    & | ~                      on boolx16

Loads and stores are in `lane_memory`, several `f32x16` in step in `wide_lanes`.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import numba.core.types as nt
from llvmlite import ir
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16
Lanes = Any  # in annotations: a value of one of the lane types

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


def splat(builder: ir.IRBuilder, value: ir.Value, vector: ir.VectorType) -> ir.Value:
    lane0 = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(WORD, 0))
    zeros = ir.Constant(ir.VectorType(WORD, vector.count), [0] * vector.count)
    return builder.shuffle_vector(lane0, ir.Constant(vector, ir.Undefined), zeros)


def _matches(found: nt.Type, wanted: Any) -> bool:
    return isinstance(found, wanted) if isinstance(wanted, type) else bool(found == wanted)


def define(function: Any, emit: Emit, result: nt.Type, *operands: Any) -> None:
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
                ready[i] = splat(builder, context.cast(builder, values[i], found, scalar), wanted.vector)
        return emit(builder, *ready)

    for s in signatures:
        lower_builtin(function, *s)(lower)


def _lanewise(result: nt.Type, *operands: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn emit(builder, *operands) into a function that compiled code calls without the builder."""

    def wrap(emit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(emit)
        def in_python(*_: Any) -> Any:
            raise TypeError(f"{emit.__name__} exists in compiled code only")

        define(in_python, emit, result, *operands)
        return in_python

    return wrap


# Operators


def emit_binary(instruction: str) -> Emit:
    """The emitter of a two-operand LLVM instruction, under llvmlite's name for it."""
    return lambda builder, a, b: getattr(builder, instruction)(a, b)


def emit_compare(kind: str, sign: str) -> Emit:
    return lambda builder, a, b: getattr(builder, kind)(sign, a, b)


for _name, _instruction, _lanes in (
    ("add", "fadd", f32x16), ("sub", "fsub", f32x16), ("mul", "fmul", f32x16), ("truediv", "fdiv", f32x16),
    ("add", "add", i32x16), ("sub", "sub", i32x16), ("mul", "mul", i32x16), ("lshift", "shl", i32x16),
    ("rshift", "ashr", i32x16), ("and_", "and_", i32x16), ("or_", "or_", i32x16), ("xor", "xor", i32x16),
    ("and_", "and_", boolx16), ("or_", "or_", boolx16),
):  # fmt: skip
    for _operator in (getattr(operator, _name), getattr(operator, "i" + _name.strip("_"))):
        define(_operator, emit_binary(_instruction), _lanes, _lanes, _lanes)
for _operator, _sign in (
    (operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="), (operator.eq, "=="),
):  # fmt: skip
    define(_operator, emit_compare("fcmp_ordered", _sign), boolx16, f32x16, f32x16)
    define(_operator, emit_compare("icmp_signed", _sign), boolx16, i32x16, i32x16)
define(operator.ne, emit_compare("fcmp_unordered", "!="), boolx16, f32x16, f32x16)
define(operator.ne, emit_compare("icmp_signed", "!="), boolx16, i32x16, i32x16)
define(operator.neg, lambda builder, a: builder.fneg(a), f32x16, f32x16)
define(operator.invert, lambda builder, a: builder.not_(a), boolx16, boolx16)

# Functions on lanes. The first parameter below is LLVM's builder: kernels leave it out.


def emit_call(builder: ir.IRBuilder, name: str, *operands: ir.Value) -> ir.Value:
    """Call the LLVM intrinsic `name` on operands with float lanes."""
    vector = operands[0].type
    kind = ir.FunctionType(vector, [vector] * len(operands))
    intrinsic_name = f"llvm.{name}.v{vector.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, intrinsic_name), operands)


@_lanewise(f32x16, nt.float32)
def every(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """A float32 scalar in every lane."""
    return splat(builder, x, FLOATS)


@intrinsic
def every_int(typing: Any, x: Any) -> Any:
    """An integer scalar, cut to 32 bits, in every lane."""
    if not isinstance(x, nt.Integer):
        raise TypingError(f"cannot spread {x} over integer lanes")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return splat(builder, builder.trunc(args[0], WORD), WORDS)

    return i32x16(nt.int64), codegen


@_lanewise(i32x16)
def lane_numbers(builder: ir.IRBuilder) -> ir.Value:
    """0, 1, … 15."""
    return ir.Constant(WORDS, list(range(LANES)))


def emit_smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def emit_larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@_lanewise(f32x16, f32x16, f32x16)
def smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """`a if a < b else b`: b where either is NaN, and where both are equal (zeros differ in sign)."""
    return emit_smaller(builder, a, b)


@_lanewise(f32x16, f32x16, f32x16)
def larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """`a if a > b else b`: b where either is NaN, and where both are equal (zeros differ in sign)."""
    return emit_larger(builder, a, b)


define(smaller, lambda builder, a, b: builder.select(builder.icmp_signed("<", a, b), a, b), i32x16, i32x16, i32x16)
define(larger, lambda builder, a, b: builder.select(builder.icmp_signed(">", a, b), a, b), i32x16, i32x16, i32x16)


def emit_where(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(mask, a, b)


@_lanewise(f32x16, boolx16, f32x16, f32x16)
def where(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """`a if mask else b`, of f32x16, i32x16 or boolx16; scalars are spread."""
    return emit_where(builder, mask, a, b)


define(where, emit_where, i32x16, boolx16, i32x16, i32x16)
define(where, emit_where, boolx16, boolx16, boolx16, boolx16)


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
    return emit_call(builder, "rint", a)


def emit_nearest(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    count = a.type.count
    words, magic = ir.VectorType(WORD, count), ir.Constant(a.type, [12582912.0] * count)  # floats there are 1 apart
    bits = builder.and_(builder.bitcast(builder.fadd(a, magic), words), ir.Constant(words, [0x7FFFFF] * count))
    bits = builder.or_(bits, ir.Constant(words, [0x4B000000] * count))
    return builder.fsub(builder.bitcast(bits, a.type), magic)


@_lanewise(f32x16, f32x16)
def nearest(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """`round_even` for |a| < 2**22; beyond, and for NaN, a number that ggml's way to round in K formats gives, too."""
    return emit_nearest(builder, a)


@_lanewise(f32x16, f32x16)
def absolute(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    return emit_call(builder, "fabs", a)


@_lanewise(f32x16, f32x16, f32x16)
def with_sign(builder: ir.IRBuilder, magnitude: ir.Value, sign: ir.Value) -> ir.Value:
    """|magnitude| with the sign of `sign` (C's copysign)."""
    return emit_call(builder, "copysign", magnitude, sign)


@_lanewise(f32x16, f32x16)
def square_root(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """Correctly rounded."""
    return emit_call(builder, "sqrt", a)


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
    """The emitter of the extreme lane, in four halving steps, as `larger` or `smaller` of pairs does it."""

    def emit(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
        undefined = ir.Constant(a.type, ir.Undefined)
        for half in (8, 4, 2, 1):
            b = builder.shuffle_vector(a, undefined, ir.Constant(WORDS, [i ^ half for i in range(LANES)]))
            a = builder.select(builder.fcmp_ordered(sign, a, b), a, b)
        return builder.extract_element(a, ir.Constant(WORD, 0))

    return emit


@_lanewise(nt.float32, f32x16)
def largest_lane(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """The greatest of the sixteen, a float32; some value where a lane is NaN."""
    return _extreme(">")(builder, a)


@_lanewise(nt.float32, f32x16)
def smallest_lane(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """The least of the sixteen, a float32; some value where a lane is NaN."""
    return _extreme("<")(builder, a)



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


define(lane, lambda builder, a, number: builder.extract_element(a, number), nt.int32, i32x16, nt.Integer)
