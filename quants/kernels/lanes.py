"""Sixteen numbers as one numba value: kernels in plain Python that keep their data in vector registers.

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

Loads and stores are in `lane_memory`, several `f32x16` processed together in `wide_lanes`.
"""

import itertools
import operator
from collections.abc import Callable
from typing import Any, ClassVar

from .numba_internals import (
    AbstractTemplate,
    TypingError,
    cgutils,
    infer_global,
    intrinsic,
    ir,
    lower_builtin,
    models,
    nt,
    register_model,
    signature,
)

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


def _matches(given: nt.Type, wanted: Any) -> bool:
    return isinstance(given, wanted) if isinstance(wanted, type) else bool(given == wanted)


def define(function: Any, emit: Emit, result: nt.Type, *operands: Any) -> None:
    """Let compiled code call `function` (ours, or an operator) on operands of these numba types.

    In place of lanes it may get a scalar, as long as one operand has lanes. An operand may be a class of numba types.
    """
    lanes = [o for o in operands if isinstance(o, LaneType)]
    choices = [(o, o.scalar) if isinstance(o, LaneType) and len(lanes) > 1 else (o,) for o in operands]
    signatures = [s for s in itertools.product(*choices) if not lanes or any(isinstance(o, LaneType) for o in s)]

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = function
        metadata: ClassVar = {"target": "cpu"}  # checked before numba's many own operators

        def generic(self, given: tuple[nt.Type, ...], names: Any) -> Any:
            fits = any(len(given) == len(s) and all(map(_matches, given, s)) for s in signatures)
            return signature(result, *given) if fits and not names else None

    infer_global(function, nt.Function(Template))

    def lower(context: Any, builder: ir.IRBuilder, given_signature: Any, values: list[ir.Value]) -> ir.Value:
        ready = list(values)
        for i, (given, wanted) in enumerate(zip(given_signature.args, operands, strict=True)):
            if isinstance(wanted, LaneType) and given != wanted:
                scalar = nt.int32 if wanted is i32x16 else given
                ready[i] = splat(builder, context.cast(builder, values[i], given, scalar), wanted.vector)
        return emit(builder, *ready)

    for s in signatures:
        lower_builtin(function, *s)(lower)


def _function(name: str, emit: Emit | None = None, result: Any = None, *operands: Any) -> Callable[..., Any]:
    """Return a function for compiled code, on these operands and on those that `define` adds."""

    def in_python(*_: Any) -> Any:
        raise TypeError(f"{name} exists in compiled code only")

    in_python.__name__ = in_python.__qualname__ = name
    if emit:
        define(in_python, emit, result, *operands)
    return in_python


# Emitters of what operators and functions compile to; the first parameter is LLVM's builder


def _binary(instruction: str) -> Emit:
    """Return a two-operand LLVM instruction, under llvmlite's name for it."""
    return lambda builder, a, b: getattr(builder, instruction)(a, b)


def _comparison(method: str, sign: str) -> Emit:
    return lambda builder, a, b: getattr(builder, method)(sign, a, b)


def _either(method: str, sign: str) -> Emit:
    """Return `a if a SIGN b else b`."""
    return lambda builder, a, b: builder.select(getattr(builder, method)(sign, a, b), a, b)


def _choice(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(mask, a, b)


def _call(name: str) -> Emit:
    """Return the LLVM intrinsic `name`, of operands with float lanes."""

    def emit(builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
        vector = operands[0].type
        function_type = ir.FunctionType(vector, [vector] * len(operands))
        return builder.call(
            cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{vector.count}f32"), operands
        )

    return emit


def _nearest(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    count = a.type.count
    words, magic = ir.VectorType(WORD, count), ir.Constant(a.type, [12582912.0] * count)  # floats there are 1 apart
    bits = builder.and_(builder.bitcast(builder.fadd(a, magic), words), ir.Constant(words, [0x7FFFFF] * count))
    bits = builder.or_(bits, ir.Constant(words, [0x4B000000] * count))
    return builder.fsub(builder.bitcast(bits, a.type), magic)


def _bits(sign: str, compared: int) -> Emit:
    """Return whether the bits of a mask are `compared`, or are not."""

    def emit(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
        bits = ir.IntType(a.type.count)
        return builder.icmp_unsigned(sign, builder.bitcast(a, bits), ir.Constant(bits, compared))

    return emit


def _extreme(sign: str, *steps: int) -> Emit:
    """Reduce the lanes in halving steps: in each lane the extreme of all that are such steps away, by `larger` or
    `smaller`.
    """

    def emit(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
        for step in steps:
            b = builder.shuffle_vector(a, a, ir.Constant(WORDS, [i ^ step for i in range(LANES)]))
            a = builder.select(builder.fcmp_ordered(sign, a, b), a, b)
        return a if 8 not in steps else builder.extract_element(a, ir.Constant(WORD, 0))

    return emit


# Functions that wider types have, too.
# `a if a < b else b` and `a if a > b else b`: b where either is NaN, and where both are equal (zeros differ in sign).
smaller, larger = _function("smaller"), _function("larger")
# where(mask, a, b): `a if mask else b`, of f32x16, i32x16 or boolx16; scalars are spread.
where = _function("where")
any_lane = _function("any_lane")
absolute = _function("absolute")
round_even = _function("round_even")  # to the nearest integer, ties to even
# `round_even` for |a| < 2**22; beyond, and for NaN, a number that ggml's way to round in K formats gives, too.
nearest = _function("nearest")


def define_floats(lanes: LaneType, mask: LaneType) -> None:
    """Define the operators of f32x16 or a wider type and of its masks, and these functions."""
    for name, instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
        _define_operator(name, instruction, lanes)
    for name in ("and_", "or_"):
        _define_operator(name, name, mask)
    for name, sign in COMPARISONS:
        define(getattr(operator, name), _comparison("fcmp_ordered", sign), mask, lanes, lanes)
    define(operator.ne, _comparison("fcmp_unordered", "!="), mask, lanes, lanes)
    define(operator.neg, lambda builder, a: builder.fneg(a), lanes, lanes)
    define(operator.invert, lambda builder, a: builder.not_(a), mask, mask)
    define(smaller, _either("fcmp_ordered", "<"), lanes, lanes, lanes)
    define(larger, _either("fcmp_ordered", ">"), lanes, lanes, lanes)
    define(where, _choice, lanes, mask, lanes, lanes)
    define(any_lane, _bits("!=", 0), nt.boolean, mask)
    define(absolute, _call("fabs"), lanes, lanes)
    define(round_even, _call("rint"), lanes, lanes)
    define(nearest, _nearest, lanes, lanes)


def _define_operator(name: str, instruction: str, lanes: LaneType) -> None:
    """Define the operator and its in-place form."""
    for each in (name, "i" + name.strip("_")):
        define(getattr(operator, each), _binary(instruction), lanes, lanes, lanes)


COMPARISONS = (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="))
define_floats(f32x16, boolx16)
for _name, _instruction in (
    ("add", "add"),
    ("sub", "sub"),
    ("mul", "mul"),
    ("lshift", "shl"),
    ("rshift", "ashr"),
    ("and_", "and_"),
    ("or_", "or_"),
    ("xor", "xor"),
):
    _define_operator(_name, _instruction, i32x16)
for _name, _sign in (*COMPARISONS, ("ne", "!=")):
    define(getattr(operator, _name), _comparison("icmp_signed", _sign), boolx16, i32x16, i32x16)
define(smaller, _either("icmp_signed", "<"), i32x16, i32x16, i32x16)
define(larger, _either("icmp_signed", ">"), i32x16, i32x16, i32x16)
define(where, _choice, i32x16, boolx16, i32x16, i32x16)
define(where, _choice, boolx16, boolx16, boolx16, boolx16)

# A float32 scalar in every lane.
every = _function("every", lambda builder, x: splat(builder, x, FLOATS), f32x16, nt.float32)


@intrinsic
def every_int(typing: Any, x: Any) -> Any:
    """Return an integer scalar, cut to 32 bits, in every lane."""
    if not isinstance(x, nt.Integer):
        raise TypingError(f"cannot spread {x} over integer lanes")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return splat(builder, builder.trunc(args[0], WORD), WORDS)

    return i32x16(nt.int64), codegen


# 0, 1, … 15.
lane_numbers = _function("lane_numbers", lambda builder: ir.Constant(WORDS, list(range(LANES))), i32x16)
# |magnitude| with the sign of the second operand (C's copysign).
with_sign = _function("with_sign", _call("copysign"), f32x16, f32x16, f32x16)
square_root = _function("square_root", _call("sqrt"), f32x16, f32x16)  # correctly rounded
# The float32 nearest to each integer.
to_float = _function("to_float", lambda builder, a: builder.sitofp(a, FLOATS), f32x16, i32x16)
# Towards zero. Undefined for NaN and outside int32: never use it as an index unchecked.
to_int = _function("to_int", lambda builder, a: builder.fptosi(a, WORDS), i32x16, f32x16)
# The IEEE bits of each float, and back.
float_bits = _function("float_bits", lambda builder, a: builder.bitcast(a, WORDS), i32x16, f32x16)
bits_float = _function("bits_float", lambda builder, a: builder.bitcast(a, FLOATS), f32x16, i32x16)
# a >> count, zeros coming in from the left.
shift_right = _function("shift_right", _binary("lshr"), i32x16, i32x16, i32x16)
all_lanes = _function("all_lanes", _bits("==", 0xFFFF), nt.boolean, boolx16)
# The mask as a scalar: bit i is lane i. `== 0`: no lane, `== 65535`: all lanes.
mask_bits = _function("mask_bits", lambda b, mask: b.zext(b.bitcast(mask, SHORT), WORD), nt.int32, boolx16)
# Number of the lowest bit that is set in an int32, so the first lane of `mask_bits`; 32 of 0.
lowest_bit = _function("lowest_bit", lambda b, bits: b.cttz(bits, ir.Constant(BIT, 0)), nt.int32, nt.int32)
# The greatest or the smallest of the sixteen, a float32; some value where a lane is NaN.
largest_lane = _function("largest_lane", _extreme(">", 8, 4, 2, 1), nt.float32, f32x16)
smallest_lane = _function("smallest_lane", _extreme("<", 8, 4, 2, 1), nt.float32, f32x16)
# In each lane the smallest of its half, lanes 0 … 7 or 8 … 15; some value where one of them is NaN.
smallest_of_half = _function("smallest_of_half", _extreme("<", 4, 2, 1), f32x16, f32x16)
# lane(a, number): the scalar in one lane, of f32x16 (float32) or i32x16 (int32).
lane = _function("lane", _binary("extract_element"), nt.float32, f32x16, nt.Integer)
define(lane, _binary("extract_element"), nt.int32, i32x16, nt.Integer)
