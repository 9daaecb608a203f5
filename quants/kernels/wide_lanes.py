"""Several f32x16 in step, as one value: where each operation waits for the one before, more of them fill the wait."""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.binding
import numba.core.types as nt
from llvmlite import ir
from numba.core import config
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .lane_memory import address_of, element_bits
from .lanes import (
    BIT,
    FLOAT,
    FLOATS,
    LANES,
    WORD,
    WORDS,
    LaneType,
    absolute,
    any_lane,
    define,
    emit_binary,
    emit_call,
    emit_compare,
    emit_larger,
    emit_nearest,
    emit_smaller,
    emit_where,
    f32x16,
    larger,
    nearest,
    round_even,
    smaller,
    splat,
    where,
)


def _define_wide(lanes: LaneType, mask: LaneType) -> None:
    """The operators of f32x16, and some of its functions, for a wider type."""
    for name, instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
        define(getattr(operator, name), emit_binary(instruction), lanes, lanes, lanes)
        define(getattr(operator, "i" + name), emit_binary(instruction), lanes, lanes, lanes)
    for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "==")):
        define(getattr(operator, name), emit_compare("fcmp_ordered", sign), mask, lanes, lanes)
    define(operator.ne, emit_compare("fcmp_unordered", "!="), mask, lanes, lanes)
    define(operator.neg, lambda builder, a: builder.fneg(a), lanes, lanes)
    for name in ("and_", "or_"):
        define(getattr(operator, name), emit_binary(name), mask, mask, mask)
        define(getattr(operator, "i" + name.strip("_")), emit_binary(name), mask, mask, mask)
    define(operator.invert, lambda builder, a: builder.not_(a), mask, mask)
    define(smaller, emit_smaller, lanes, lanes, lanes)
    define(larger, emit_larger, lanes, lanes, lanes)
    define(where, emit_where, lanes, mask, lanes, lanes)
    define(round_even, lambda builder, a: emit_call(builder, "rint", a), lanes, lanes)
    define(nearest, emit_nearest, lanes, lanes)
    define(absolute, lambda builder, a: emit_call(builder, "fabs", a), lanes, lanes)

    def any_of(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
        bits = ir.IntType(a.type.count)
        return builder.icmp_unsigned("!=", builder.bitcast(a, bits), ir.Constant(bits, 0))

    define(any_lane, any_of, nt.boolean, mask)


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
        return splat(builder, args[0], lanes.vector)

    return lanes(nt.float32, nt.none if _is_alone(apart) else nt.intp), codegen


@intrinsic
def load_wide(typing: Any, array: Any, at: Any, apart: Any) -> Any:
    """GROUPS times sixteen floats: from `at` on, from `at + apart` on, … An f32x16 from `at` on if `apart` is None."""
    lanes = _lanes_apart(apart)
    if element_bits(array, "load from") is not FLOATS:
        raise TypingError(f"cannot load {lanes} from {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        parts, at = [], args[1]
        for first in range(0, lanes.vector.count, LANES):
            at = builder.add(at, args[2]) if first else at
            part = builder.load(address_of(context, builder, signature.args[0], args[0], at, FLOATS))
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
    if element_bits(array, "store to") is not FLOATS or value != _lanes_apart(apart):
        raise TypingError(f"cannot store {value} to {array} in groups {apart} apart")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        at = args[1]
        for first in range(0, value.vector.count, LANES):
            at = builder.add(at, args[2]) if first else at
            pick = ir.Constant(WORDS, list(range(first, first + LANES)))
            part = builder.shuffle_vector(args[3], ir.Constant(value.vector, ir.Undefined), pick)
            builder.store(part, address_of(context, builder, signature.args[0], args[0], at, FLOATS)).align = 1
        return context.get_dummy_value()

    return nt.void(array, nt.intp, nt.none if _is_alone(apart) else nt.intp, value), codegen
