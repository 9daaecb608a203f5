"""Several f32x16 as one value: where each operation waits for the one before, more of them fill the wait."""

from typing import Any

from .lane_memory import element_bits, load_at, store_at
from .lanes import BIT, FLOAT, FLOATS, LANES, WORD, WORDS, LaneType, define_floats, f32x16, splat
from .numba_internals import TypingError, host_features, intrinsic, ir, nt

# How many f32x16 make a wide value: there is room in 32 long registers
GROUPS = 4 if "+avx512f" in host_features().split(",") else 1
wide = f32x16
if GROUPS > 1:
    wide = LaneType("f32wide", ir.VectorType(FLOAT, GROUPS * LANES), nt.float32)
    define_floats(wide, LaneType("boolwide", ir.VectorType(BIT, GROUPS * LANES), nt.boolean))


def _types_apart(apart: nt.Type) -> tuple[LaneType, nt.Type]:
    """Return the types of the lanes and of the distance `apart`; None stands for one f32x16 instead of a wide value."""
    return (f32x16, nt.none) if apart == nt.none else (wide, nt.intp)


@intrinsic
def every_wide(typing: Any, x: Any, apart: Any) -> Any:
    """Return a float32 scalar in every lane of a wide value; of an f32x16 if `apart` is None."""
    lanes, distance = _types_apart(apart)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return splat(builder, args[0], lanes.vector)

    return lanes(nt.float32, distance), codegen


@intrinsic
def load_wide(typing: Any, array: Any, at: Any, apart: Any) -> Any:
    """Return GROUPS times sixteen floats: from `at` on, from `at + apart` on, … An f32x16 from `at` on if `apart` is
    None.
    """
    lanes, distance = _types_apart(apart)
    if element_bits(array, "load from") is not FLOATS:
        raise TypingError(f"cannot load {lanes} from {array}")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        parts, at = [], args[1]
        for first in range(0, lanes.vector.count, LANES):
            at = builder.add(at, args[2]) if first else at
            parts.append(load_at(context, builder, array, args[0], at, FLOATS))
        while len(parts) > 1:
            both = ir.Constant(ir.VectorType(WORD, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
            parts = [builder.shuffle_vector(parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
        return parts[0]

    return lanes(array, nt.intp, distance), codegen


@intrinsic
def store_wide(typing: Any, array: Any, at: Any, apart: Any, value: Any) -> Any:
    """Store a wide value where `load_wide` would read it."""
    lanes, distance = _types_apart(apart)
    if element_bits(array, "store to") is not FLOATS or value != lanes:
        raise TypingError(f"cannot store {value} to {array} in groups {apart} apart")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        at = args[1]
        for first in range(0, value.vector.count, LANES):
            at = builder.add(at, args[2]) if first else at
            pick = ir.Constant(WORDS, list(range(first, first + LANES)))
            part = builder.shuffle_vector(args[3], ir.Constant(value.vector, ir.Undefined), pick)
            store_at(context, builder, array, args[0], at, part)
        return context.get_dummy_value()

    return nt.void(array, nt.intp, distance, value), codegen
