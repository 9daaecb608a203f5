"""Matrix products in float32, each sum in a fixed order: the same bits however the work is shared.

TOKENS inputs and ROWS weights are multiplied at a time, with their sums in registers. Sums of COLUMNS products are
added up, so that a long sum loses no more than a short one. Weights: tiles of ROWS rows, column by column.

Processors with 32 registers of 512 bits (`available`) are faster with this than with most BLAS.
"""

from typing import Any

import numpy as np

from quants.kernels.jit import kernel
from quants.kernels.lane_memory import load, load_at, store, store_at, transpose_tile
from quants.kernels.lanes import FLOAT, FLOATS, INDEX, LANES, every, splat
from quants.kernels.numba_internals import cgutils, intrinsic, ir, nt

from .int16x32 import cpu_features

TOKENS, ROWS = 6, 64  # of a register tile: 24 sums, four vectors of weights and one of inputs fit 32
VECTORS = ROWS // LANES
COLUMNS = 256  # 64 kB of weights stay in the second cache while the inputs pass
UNROLLED = 4

f32 = np.float32


def available() -> bool:
    return {"+avx512f", "+avx512bw"} <= cpu_features()


@intrinsic
def add_columns(typing, sums, sums_at, x, x_at, stride, w, w_at, columns):  # type: ignore[no-untyped-def]
    """Add to sums, at sums_at + ROWS * t, the products of TOKENS inputs, at x_at + stride * t, and ROWS weights.

    columns: how many, a multiple of UNROLLED.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        types, (sums_v, sums_at, x_v, x_at, stride, w_v, w_at, columns) = signature.args, args
        tokens, vectors = range(TOKENS), range(VECTORS)

        def number(value: int) -> Any:
            return ir.Constant(INDEX, value)

        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), "llvm.fma.v16f32")
        zero = ir.Constant(FLOATS, [0.0] * LANES)
        totals = [[cgutils.alloca_once_value(builder, zero) for _ in vectors] for _ in tokens]
        begins = [builder.add(x_at, builder.mul(stride, number(t))) for t in tokens]
        with cgutils.for_range(builder, builder.udiv(columns, number(UNROLLED))) as loop:
            for u in range(UNROLLED):
                column = builder.add(builder.mul(loop.index, number(UNROLLED)), number(u))
                row = builder.add(w_at, builder.mul(column, number(ROWS)))
                weights = [
                    load_at(context, builder, types[5], w_v, builder.add(row, number(LANES * v)), FLOATS)
                    for v in vectors
                ]
                for t in tokens:
                    value = load_at(context, builder, types[2], x_v, builder.add(begins[t], column), FLOAT)
                    value = splat(builder, value, FLOATS)
                    for v in vectors:
                        total = builder.call(fma, [weights[v], value, builder.load(totals[t][v])])
                        builder.store(total, totals[t][v])
        for t in tokens:
            for v in vectors:
                at = types[0], sums_v, builder.add(sums_at, number(ROWS * t + LANES * v))
                total = builder.fadd(load_at(context, builder, *at, FLOATS), builder.load(totals[t][v]))
                store_at(context, builder, *at, total)
        return context.get_dummy_value()

    return nt.void(sums, nt.intp, x, nt.intp, nt.intp, w, nt.intp, nt.intp), codegen


@kernel
def multiply(x, width, w, tokens, sums, out, column, columns, stride):  # type: ignore[no-untyped-def]
    """Compute out[t * stride + column + i] = input t times row i of a tile, for its first `columns` rows.

    x: flat rows of `width`, a multiple of UNROLLED, the last group of TOKENS complete. sums: scratch of ROWS float32
    for each of them.
    """
    for first in range(0, width, COLUMNS):
        count = min(COLUMNS, width - first)
        for t in range(0, tokens, TOKENS):
            if first == 0:
                for i in range(ROWS * t, ROWS * (t + TOKENS), LANES):
                    store(sums, i, every(f32(0)))
            add_columns(sums, ROWS * t, x, t * width + first, width, w, ROWS * first, count)
    for t in range(tokens):
        if columns == ROWS:
            for c in range(0, ROWS, LANES):
                store(out, t * stride + column + c, load(sums, ROWS * t + c))
        else:
            for c in range(columns):
                out[t * stride + column + c] = sums[ROWS * t + c]


@kernel
def pack_weights(rows, count, width, across, offsets, packed):  # type: ignore[no-untyped-def]
    """Pack decoded rows, flat float32 of `width`, a multiple of LANES, into a tile; those beyond count repeat the last
    one.

    across, offsets: scratch of LANES² float32 and LANES int64.
    """
    for start in range(0, ROWS, LANES):
        for i in range(LANES):
            offsets[i] = width * min(start + i, count - 1)
        for column in range(0, width, LANES):
            transpose_tile(rows, offsets, column, across, 0)
            for i in range(LANES):
                store(packed, ROWS * (column + i) + start, load(across, LANES * i))
