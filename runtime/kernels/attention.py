"""Attention of a block of queries in float32: two matrix products in a core's caches, with a softmax in between.

BLAS takes long to begin a product this small, and computes scores of keys that no query sees. Here a tile of ROWS rows
and COLUMNS columns is summed in registers, over as much of the other factor as is seen and no more.

Rows: a query's heads one after the other, each of which looks at the same keys; filled up to a multiple of ROWS. Row r
is of query r // heads, which sees keys first[query] … last[query] - 1.
"""

from typing import Any

import numpy as np

from quants.kernels.jit import inlined, kernel
from quants.kernels.lane_memory import load, load_at, store, store_at, transpose_tile
from quants.kernels.lanes import (
    FLOAT,
    FLOATS,
    INDEX,
    LANES,
    every,
    every_int,
    lane_numbers,
    larger,
    largest_lane,
    splat,
    where,
)
from quants.kernels.numba_internals import cgutils, intrinsic, ir, nt

from .exponential import ZERO, exp_of_lanes
from .int16x32 import cpu_features, sum_of_lanes

# of a register tile: 24 sums in 32 registers of sixteen floats, or 12 in 16 of eight, or 24 in 32 of four
ROWS, VECTORS = (12, 2) if "+avx512f" in cpu_features() else (6, 1)
COLUMNS = VECTORS * LANES
KEYS = 128  # of a chunk: this many keys or values of 64 numbers stay in the first cache
SUMMED = 128 * LANES  # scores whose weights are summed in float32

f32 = np.float32


@intrinsic
def multiply_tile(  # type: ignore[no-untyped-def]
    typing, a, a_at, a_stride, b, b_at, b_stride, b_apart, depth, out, out_at, out_stride, add
):
    """Return out[r, c] = the sum over k < depth of a[r, k] * b[k, c] for ROWS rows and COLUMNS columns; or add it, if
    `add`.

    All are flat float32 arrays; a matrix begins at `_at`, its rows are `_stride` apart, sixteen columns of b from the
    next sixteen `b_apart`.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        types = signature.args
        a, a_at, a_stride, b, b_at, b_stride, b_apart, depth, out, out_at, out_stride, add = args

        def places(at: Any, stride: Any, count: int) -> list[Any]:
            return [builder.add(at, builder.mul(stride, ir.Constant(INDEX, i))) for i in range(count)]

        rows, columns = places(a_at, a_stride, ROWS), places(b_at, b_apart, VECTORS)
        targets = [places(at, ir.Constant(INDEX, LANES), VECTORS) for at in places(out_at, out_stride, ROWS)]

        def begun(at: Any) -> Any:
            before = load_at(context, builder, types[8], out, at, FLOATS)
            return cgutils.alloca_once_value(builder, builder.select(add, before, ir.Constant(FLOATS, [0.0] * LANES)))

        sums = [[begun(at) for at in own] for own in targets]
        function_type = ir.FunctionType(FLOATS, [FLOATS] * 3)
        add_product = cgutils.get_or_insert_function(builder.module, function_type, "llvm.fmuladd.v16f32")
        with cgutils.for_range(builder, depth) as loop:
            row = builder.mul(loop.index, b_stride)
            loaded = [load_at(context, builder, types[3], b, builder.add(at, row), FLOATS) for at in columns]
            for at, own in zip(rows, sums, strict=True):
                value = load_at(context, builder, types[0], a, builder.add(at, loop.index), FLOAT)
                value = splat(builder, value, FLOATS)
                for column, total in zip(loaded, own, strict=True):
                    builder.store(builder.call(add_product, [value, column, builder.load(total)]), total)
        for own, totals in zip(targets, sums, strict=True):
            for at, total in zip(own, totals, strict=True):
                store_at(context, builder, types[8], out, at, builder.load(total))
        return context.get_dummy_value()

    index = nt.intp
    return nt.void(a, index, index, b, index, index, index, index, out, index, index, nt.boolean), codegen


@kernel
def pack_keys(keys, stride, count, width, offsets, packed):  # type: ignore[no-untyped-def]
    """Pack keys, flat rows `stride` apart of a width that is a multiple of 16: sixteen keys' values side by side.

    offsets: scratch of 16 int64. packed: width * (count rounded up to a multiple of COLUMNS).
    """
    for j in range(0, -(-count // COLUMNS) * COLUMNS, LANES):
        for i in range(LANES):
            offsets[i] = min(j + i, count - 1) * stride
        for c in range(0, width, LANES):
            transpose_tile(keys, offsets, c, packed, j * width + LANES * c)


@inlined
def _seen(first, last, r, rows, heads):  # type: ignore[no-untyped-def]
    """Return the range of keys visible to the queries of rows r … r + ROWS - 1: from the first, a multiple of COLUMNS,
    to the last.
    """
    begin, end = np.int64(1) << 62, np.int64(0)
    for query in range(r // heads, (min(r + ROWS, rows) - 1) // heads + 1):
        begin, end = min(begin, first[query]), max(end, last[query])
    return begin // COLUMNS * COLUMNS, max(begin, end)


@kernel
def scores(q, rows, heads, width, first, last, keys, base, out, stride):  # type: ignore[no-untyped-def]
    """Compute out[r * stride + j - base] = row r of q times key j, for those visible to a tile's rows, and some next to
    them.

    q: flat (rows rounded up, width). keys: from `pack_keys`. base: a multiple of COLUMNS, at most the first visible
    key.
    """
    for chunk in range(base, base + stride - LANES, KEYS):
        for r in range(0, rows, ROWS):
            begin, end = _seen(first, last, r, rows, heads)
            for j in range(max(begin, chunk), min(end, chunk + KEYS), COLUMNS):
                at = r * stride + j - base
                multiply_tile(q, r * width, width, keys, j * width, LANES, LANES * width, width, out, at, stride, False)


@inlined
def _weigh(scores, at, begin, end, first, last, sink):  # type: ignore[no-untyped-def]
    """Replace scores[at + j] by e^(itself - largest) for first <= j < last, by 0 for the others from begin to end.

    Returns the factor that makes their sum one.
    """
    top = every(f32(-np.inf))
    for j in range(begin, end, LANES):
        top = where(_among(j, first, last), larger(load(scores, at + j), top), top)
    largest = max(largest_lane(top), sink)
    total = 0.0
    if sink > -np.inf:
        total = np.float64(largest_lane(exp_of_lanes(every(sink - largest))))
    for start in range(begin, end, SUMMED):
        part = every(ZERO)
        for j in range(start, min(start + SUMMED, end), LANES):
            weight = where(_among(j, first, last), exp_of_lanes(load(scores, at + j) - largest), every(ZERO))
            store(scores, at + j, weight)
            part = part + weight
        total += np.float64(sum_of_lanes(part))
    return f32(1.0 / total) if last > first else ZERO


@inlined
def _among(j, first, last):  # type: ignore[no-untyped-def]
    number = lane_numbers() + every_int(j)
    return (number >= every_int(first)) & (number < every_int(last))


@inlined
def _seen_of_chunk(first, last, r, rows, heads, chunk):  # type: ignore[no-untyped-def]
    begin, end = _seen(first, last, r, rows, heads)
    return max(begin, chunk), min(end, chunk + KEYS)


@kernel
def mix(  # type: ignore[no-untyped-def]
    scores,
    stride,
    base,
    rows,
    heads,
    first,
    last,
    sinks,
    values,
    at,
    value_stride,
    mixed,
    shares,
    out,
    out_at,
    out_stride,
    width,
):
    """Compute softmax(scores) times values, at out_at + query * out_stride + head * width; zeros for a query without
    keys.

    scores, stride, base: as from `scores`; weights overwrite them. sinks (heads,): logits that only add to the sum,
    -inf for none. values: key j's begin at at + value_stride * j, width of them rounded up to a multiple of COLUMNS.
    mixed, shares: scratch for a row of them and a number for each row.
    """
    filled = -(-width // COLUMNS) * COLUMNS
    for r in range(0, rows, ROWS):
        begin, end = _seen(first, last, r, rows, heads)
        until = -(-end // LANES) * LANES
        for i in range(r, min(r + ROWS, rows)):
            query, row = i // heads, i * stride - base
            shares[i] = _weigh(scores, row, begin, until, first[query], last[query], sinks[i % heads])
    for i in range(0, -(-rows // ROWS) * ROWS * filled, LANES):
        store(mixed, i, every(ZERO))
    for chunk in range(base, base + stride - LANES, KEYS):
        for r in range(0, rows, ROWS):
            begin, end = _seen_of_chunk(first, last, r, rows, heads, chunk)
            if begin < end:
                for c in range(0, filled, COLUMNS):
                    multiply_tile(
                        scores,
                        r * stride - base + begin,
                        stride,
                        values,
                        at + value_stride * begin + c,
                        value_stride,
                        LANES,
                        end - begin,
                        mixed,
                        r * filled + c,
                        filled,
                        True,
                    )
    for i in range(rows):
        whole, to = width // LANES * LANES, out_at + i // heads * out_stride + i % heads * width
        for c in range(0, whole, LANES):
            store(out, to + c, load(mixed, i * filled + c) * shares[i])
        for c in range(whole, width):
            out[to + c] = mixed[i * filled + c] * shares[i]
