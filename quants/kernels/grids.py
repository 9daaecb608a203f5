"""The grids of the IQ formats: which combinations of levels a group of 4 or 8 values may take.

They come from the `gguf` package. A point is kept by its level numbers (0, 1, 2 or 0 … 7), in the order of the indexes
that files store.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import inlined
from .lanes import LANES, Lanes, every_int, i32x16, lane_numbers, where
from .numba_internals import TypingError, intrinsic, ir, nt


@cache
def grid_values(name: str) -> NDArray[np.int8]:
    """Return the values of the grid points of the format `name`: int8 (points, 8 or 4), read-only."""
    import gguf.quants  # slow to import, and only these formats need it

    form = getattr(gguf.quants, name)
    form.init_grid()
    values = np.ascontiguousarray(form.grid.reshape(form.grid_shape).astype(np.int8))
    values.flags.writeable = False
    return values


@cache
def grid_levels(name: str) -> NDArray[np.uint8]:
    """Return the points of the format `name` as level numbers: uint8 (points, 8 or 4), read-only."""
    values = grid_values(name)
    levels = np.searchsorted(np.unique(values), values).astype(np.uint8)
    levels.flags.writeable = False
    return levels


# Seven sign bits are stored, the eighth makes the number of negative signs even.
EVEN_SIGNS = np.array([b | (b.bit_count() & 1) << 7 for b in range(128)], np.uint8)


def _parts(grid: Any, count: int) -> Any:
    """Return signature and code that assemble the sixteen values of `count` points, by their indexes."""
    bits = ir.IntType(128 // count)
    if grid.dtype != nt.int8 or grid.layout != "C":
        raise TypingError(f"cannot take points of {grid}: needs a C-contiguous int8 array")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        points = builder.bitcast(data, bits.as_pointer())
        parts = ir.Constant(ir.VectorType(bits, count), ir.Undefined)
        for i, index in enumerate(args[1:]):
            part = builder.load(builder.gep(points, [index]))
            part.align = 1
            parts = builder.insert_element(parts, part, ir.Constant(ir.IntType(32), i))
        values = builder.bitcast(parts, ir.VectorType(ir.IntType(8), LANES))
        return builder.sext(values, ir.VectorType(ir.IntType(32), LANES))

    return i32x16(grid, *[nt.intp] * count), codegen


@intrinsic
def two_points(typing: Any, grid: Any, a: Any, b: Any) -> Any:
    """Return the values of two points of eight, as i32x16, by their indexes in an int8 grid."""
    return _parts(grid, 2)


@intrinsic
def four_points(typing: Any, grid: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the values of four points of four, as i32x16, by their indexes in an int8 grid."""
    return _parts(grid, 4)


@inlined
def signed(values: Lanes, bits: int) -> Lanes:
    """Return f32x16 values, negated where the lane's bit is set."""
    return where((every_int(bits) & (every_int(1) << lane_numbers())) != 0, -values, values)
