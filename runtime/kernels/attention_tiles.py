"""Small matrix products of attention for a few tokens: some rows of queries with keys, and of weights with values.

A tile of sums stays in registers. Keys and values are laid out as in caches: one position's row some stride after
another's, of float32, of float16 (uint16), or of Q8_0's blocks (int8). They become float32 in registers.
"""

from collections.abc import Callable
from typing import Any

from quants.kernels.lane_memory import address_of, load_at, store_at
from quants.kernels.lanes import BYTE, BYTES, FLOAT, FLOATS, INDEX, LANES, SHORT, SHORTS, WORD, WORDS, splat
from quants.kernels.numba_internals import cgutils, intrinsic, ir, nt
from quants.kernels.small_blocks import Q8_BYTES, VALUES

from .int16x32 import CACHE_LINE, cpu_features, fetch, half_of, halves_of

WIDE_REGISTERS = "+avx512f" in cpu_features()
ROWS = 4 if WIDE_REGISTERS else 2  # of the largest tile
SUMS = 16 if WIDE_REGISTERS else 4  # vectors of sixteen sums that fit the registers
VECTORS = max(2, SUMS // ROWS)  # columns of values in a tile, in vectors


def _number(value: int) -> ir.Constant:
    return ir.Constant(INDEX, value)


def _places(builder: ir.IRBuilder, at: ir.Value, stride: ir.Value, count: int, last: ir.Value | None) -> list[ir.Value]:
    """Return offsets of this many rows; those after the last one (a count of rows) repeat the last one."""
    offsets = []
    for i in range(count):
        number = _number(i)
        if last is not None:
            number = builder.select(builder.icmp_signed("<", number, last), number, builder.sub(last, _number(1)))
        offsets.append(builder.add(at, builder.mul(number, stride)))
    return offsets


def _multiply_add(builder: ir.IRBuilder) -> Callable[..., ir.Value]:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), "llvm.fma.v16f32")
    return lambda *operands: builder.call(function, operands)


def _picked(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(WORD, len(lanes)), lanes))


def _sums(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """Return the sum of each vector's sixteen lanes, side by side. Their number is 2, 4, 8 or 16."""
    count, width = len(vectors), LANES
    while width > count:
        width //= 2
        low, high = list(range(width)), list(range(width, 2 * width))
        vectors = [builder.fadd(_picked(builder, v, v, low), _picked(builder, v, v, high)) for v in vectors]
    step = count // 2
    while step:  # lanes with this bit continue with the second half of the vectors
        low = [i if not i & step else count + i - step for i in range(count)]
        high = [i + step if not i & step else count + i for i in range(count)]
        pairs = zip(vectors[:step], vectors[step:], strict=True)
        vectors = [builder.fadd(_picked(builder, a, b, low), _picked(builder, a, b, high)) for a, b in pairs]
        step //= 2
    return vectors[0]


def _vectors(  # type: ignore[no-untyped-def]
    context: Any, builder: ir.IRBuilder, array: nt.Array, value, row: ir.Value, column: ir.Value, count: int
) -> list[tuple[ir.Value, ir.Value | None]]:
    """Return `count` times sixteen numbers of a row, from a column on, each with its scale to multiply by, or None; of
    blocks, whole ones.
    """
    if array.dtype != nt.int8:
        places = _places(builder, builder.add(row, column), _number(LANES), count, None)
        if array.dtype == nt.float32:
            return [(load_at(context, builder, array, value, at, FLOATS), None) for at in places]
        halves = [load_at(context, builder, array, value, at, SHORTS) for at in places]
        return [(halves_of(context, builder, each, LANES), None) for each in halves]
    vectors, size = [], _number(Q8_BYTES)
    first = builder.add(row, builder.mul(builder.sdiv(column, _number(VALUES)), size))
    for at in _places(builder, first, size, count // 2, None):
        scale = half_of(context, builder, load_at(context, builder, array, value, at, SHORT))
        for offset in (2, 2 + LANES):
            codes = load_at(context, builder, array, value, builder.add(at, _number(offset)), BYTES)
            vectors.append((builder.sitofp(builder.sext(codes, WORDS), FLOATS), scale))
    return vectors


def _fetch(  # type: ignore[no-untyped-def]
    context: Any, builder: ir.IRBuilder, array: nt.Array, value, row: ir.Value, column: ir.Value, count: int
) -> None:
    """Prefetch the cache lines that `_vectors` reads."""
    size, at = 4 if array.dtype == nt.float32 else 2, builder.add(row, column)
    if array.dtype == nt.int8:
        size = 1
        at = builder.add(row, builder.mul(builder.sdiv(column, _number(VALUES)), _number(Q8_BYTES)))
        count = count // 2 * Q8_BYTES
    else:
        count *= LANES
    for i in range(0, count, CACHE_LINE // size):
        fetch(context, builder, address_of(context, builder, array, value, builder.add(at, _number(i)), BYTE), cache=2)


def _scaled(builder: ir.IRBuilder, vectors: list[tuple[ir.Value, ir.Value | None]]) -> list[ir.Value]:
    return [
        numbers if scale is None else builder.fmul(numbers, splat(builder, scale, FLOATS)) for numbers, scale in vectors
    ]


def _at_once(array: nt.Array) -> int:
    """Return how many vectors are read together."""
    return 2 if array.dtype == nt.int8 else 1


def _score_tile(rows: int, keys: int) -> Any:
    @intrinsic
    def score_tile(  # type: ignore[no-untyped-def]
        typing, q, q_at, q_stride, q_rows, k, k_at, k_stride, k_rows, width, out, out_at, out_stride
    ):
        """Compute out[r, j] = row r of q times row j of k, for this tile's rows and keys, of which there may be fewer.

        Rows begin at `_at` and are `_stride` apart, in flat arrays; width: a multiple of 16, of blocks one of 32. For
        missing rows, the tile repeats the last one; out must have room for it.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            types = signature.args
            q, q_at, q_stride, q_rows, k, k_at, k_stride, k_rows, width, out, out_at, out_stride = args
            asked = _places(builder, q_at, q_stride, rows, q_rows)
            key_places = _places(builder, k_at, k_stride, keys, k_rows)
            zero, add = ir.Constant(FLOATS, [0.0] * LANES), _multiply_add(builder)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in key_places] for _ in asked]
            step = _at_once(types[4])
            with cgutils.for_range(builder, builder.sdiv(width, _number(step * LANES))) as loop:
                column = builder.mul(loop.index, _number(step * LANES))
                queries = [_scaled(builder, _vectors(context, builder, types[0], q, at, column, step)) for at in asked]
                for j, at in enumerate(key_places):
                    key = _vectors(context, builder, types[4], k, at, column, step)
                    if rows == 1 and step == 2:  # one scale for both: that of their sum
                        part = add(queries[0][1], key[1][0], builder.fmul(queries[0][0], key[0][0]))
                        scale = splat(builder, key[0][1], FLOATS)
                        builder.store(add(part, scale, builder.load(sums[0][j])), sums[0][j])
                        continue
                    numbers = _scaled(builder, key)
                    for own, query in zip(sums, queries, strict=True):
                        for a, b in zip(query, numbers, strict=True):
                            builder.store(add(a, b, builder.load(own[j])), own[j])
            scores = _sums(builder, [builder.load(each) for own in sums for each in own])
            for r, at in enumerate(_places(builder, out_at, out_stride, rows, None)):
                own = _picked(builder, scores, scores, list(range(r * keys, (r + 1) * keys)))
                store_at(context, builder, types[9], out, at, own)
            return context.get_dummy_value()

        i = nt.intp
        return nt.void(q, i, i, i, k, i, i, i, i, out, i, i), codegen

    return score_tile


def _mix_tile(rows: int, vectors: int) -> Any:
    @intrinsic
    def mix_tile(  # type: ignore[no-untyped-def]
        typing, weights, w_at, w_stride, w_rows, v, column, v_stride, count, out, out_at, out_stride, ahead
    ):
        """Add to out[r, c] the sum over j < count of weights[r, j] * v[j, column + c], for this tile's rows and
        columns.

        Missing rows repeat the last one. Elements of v `ahead` later are prefetched meanwhile.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            types = signature.args
            weights, w_at, w_stride, w_rows, v, column, v_stride, count, out, out_at, out_stride, ahead = args
            columns = max(vectors, _at_once(types[4]))
            shares = _places(builder, w_at, w_stride, rows, w_rows)
            add, apart = _multiply_add(builder), _number(LANES)
            targets = [
                _places(builder, at, apart, columns, None) for at in _places(builder, out_at, out_stride, rows, w_rows)
            ]
            sums = [
                [cgutils.alloca_once_value(builder, load_at(context, builder, types[8], out, at, FLOATS)) for at in own]
                for own in targets
            ]
            with cgutils.for_range(builder, count) as loop:
                row = builder.mul(loop.index, v_stride)
                _fetch(context, builder, types[4], v, builder.add(row, ahead), column, columns)
                loaded = _vectors(context, builder, types[4], v, row, column, columns)
                values = [numbers for numbers, _ in loaded] if rows == 1 else _scaled(builder, loaded)
                for at, own in zip(shares, sums, strict=True):
                    weight = load_at(context, builder, types[0], weights, builder.add(at, loop.index), FLOAT)
                    for (_, scale), value, total in zip(loaded, values, own, strict=True):
                        factor = builder.fmul(weight, scale) if rows == 1 and scale is not None else weight
                        builder.store(add(splat(builder, factor, FLOATS), value, builder.load(total)), total)
            for own, totals in zip(targets, sums, strict=True):
                for at, total in zip(own, totals, strict=True):
                    store_at(context, builder, types[8], out, at, builder.load(total))
            return context.get_dummy_value()

        i = nt.intp
        return nt.void(weights, i, i, i, v, i, i, i, out, i, i, i), codegen

    return mix_tile


# By their number of rows: the largest tile's, two, one.
KEYS_OF = (SUMS // ROWS, SUMS // 2, SUMS)
score_rows, score_two, score_one = (_score_tile(r, SUMS // r) for r in (ROWS, 2, 1))
mix_rows, mix_two, mix_one = (_mix_tile(r, VECTORS) for r in (ROWS, 2, 1))
mix_rows_narrow, mix_one_narrow = _mix_tile(ROWS, 1), _mix_tile(1, 1)
