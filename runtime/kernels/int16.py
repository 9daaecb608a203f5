"""Matrix products in 16-bit integers: near-float32 results at about twice the speed of float32.

Inputs are cut into blocks of 32 columns, each with a scale that makes its values integers of 16 bits whose squares sum
to less than 2³¹; a row of weights has one scale, by which that holds for each of its blocks. By the inequality of
Cauchy and Schwarz no sum of products of two such blocks leaves 32 bits. A block's integers are multiplied and summed
exactly; the sums, times the input's scale, are added in float32. What is lost is the rounding to integers: 5e-5 of a
result's size (bfloat16 loses 6e-3), where float32 itself loses 4e-7.

Only processors with an instruction for it (`available`) are faster at this than at float32: AVX512-VNNI multiplies 32
pairs in the time of 16 in float32. `vpdpwssd` stands here as assembly since LLVM replaces it on Intel's processors by
two instructions that take twice as long.

Inputs: for each TOKENS rows (those beyond the input zero) and each block the rows' int16, one after the other; float32
scales in the same order. Weights: tiles of ROWS rows, for each block 16 pairs of columns, each pair of all ROWS rows
side by side as int32; and ROWS float32 scales.
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
    WORD,
    WORDS,
    absolute,
    every,
    float_bits,
    larger,
    largest_lane,
    splat,
    square_root,
    where,
)
from quants.kernels.numba_internals import cgutils, intrinsic, ir, llvm, nt

from .exponential import MAGIC
from .int16x32 import cpu_features, multiply_add, prefetch_to_write, sum_of_lanes

BLOCK, PAIRS = 32, 16
TOKENS, ROWS = 6, 64  # of a register tile: 24 sums, four vectors of weights and one of inputs fit 32
VECTORS = ROWS // LANES
UNROLLED = 4  # pairs of columns
NORM = np.float32(46330)  # of a block's integers; with their rounding 46333, and 46333² < 2³¹
LARGEST = np.float32(32767)
TINY = np.float32(1e-17)  # blocks below it count as zeros: their squares are not all normal numbers
AHEAD = 4  # blocks before the last: results are prefetched in time
BLOCKS_AT_ONCE = 64  # 256 kB of weights stay in the second cache while the inputs pass

f32 = np.float32


def available() -> bool:
    """Return whether the processor multiplies integers of 16 bits, and of 8, faster than float32."""
    return {"+avx512f", "+avx512bw", "+avx512vnni"} <= cpu_features()


llvm.initialize_native_asmparser()


def summing(instruction: str) -> Any:
    """Return an instruction of AVX512-VNNI as a function of weights, inputs and the sums that their products are added
    to.
    """
    return ir.InlineAsm(ir.FunctionType(WORDS, [WORDS] * 3), f"{instruction} $2, $1, $0", "=v,v,v,0")


@intrinsic
def add_block(typing, sums, sums_at, x, x_at, x_scales, scales_at, w, w_at):  # type: ignore[no-untyped-def]
    """Add the products of a block of TOKENS inputs and one of ROWS weights to sums, float32, at sums_at + ROWS * t.

    x (int32 pairs), x_scales, w: the blocks begin at x_at, scales_at, w_at.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = dict(
            zip(("sums", "x", "scales", "w"), zip(signature.args[::2], args[::2], args[1::2], strict=True), strict=True)
        )
        tokens, vectors = range(TOKENS), range(VECTORS)

        def place(name: str, offset: int, more: Any = None) -> tuple[Any, Any, Any]:
            array_type, value, at = arrays[name]
            at = builder.add(at, ir.Constant(INDEX, offset))
            return array_type, value, at if more is None else builder.add(at, more)

        def everywhere(where: tuple[Any, Any, Any], element: Any, lanes: Any) -> Any:
            return splat(builder, load_at(context, builder, *where, element), lanes)

        dot = summing("vpdpwssd")
        zero = ir.Constant(WORDS, [0] * LANES)
        products = [[cgutils.alloca_once_value(builder, zero) for _ in vectors] for _ in tokens]
        with cgutils.for_range(builder, ir.Constant(INDEX, PAIRS // UNROLLED)) as loop:
            for u in range(UNROLLED):
                p = builder.add(builder.mul(loop.index, ir.Constant(INDEX, UNROLLED)), ir.Constant(INDEX, u))
                row = builder.mul(p, ir.Constant(INDEX, ROWS))
                weights = [load_at(context, builder, *place("w", LANES * v, row), WORDS) for v in vectors]
                for t in tokens:
                    pair = everywhere(place("x", PAIRS * t, p), WORD, WORDS)
                    for v in vectors:
                        total = builder.call(dot, [weights[v], pair, builder.load(products[t][v])])
                        builder.store(total, products[t][v])
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), "llvm.fma.v16f32")
        for t in tokens:
            scale = everywhere(place("scales", t), FLOAT, FLOATS)
            for v in vectors:
                at = place("sums", ROWS * t + LANES * v)
                product = builder.sitofp(builder.load(products[t][v]), FLOATS)
                total = builder.call(fma, [product, scale, load_at(context, builder, *at, FLOATS)])
                store_at(context, builder, *at, total)
        return context.get_dummy_value()

    return nt.void(sums, nt.intp, x, nt.intp, x_scales, nt.intp, w, nt.intp), codegen


@kernel
def multiply(x, x_scales, w, w_scales, tokens, blocks, sums, out, column, columns, stride):  # type: ignore[no-untyped-def]
    """Compute out[t * stride + column + i] = input t times row i of a tile, for its first `columns` rows.

    x: pairs as int32. sums: scratch of ROWS float32 for each token, the last group of TOKENS complete.
    """
    zero = every(f32(0))
    for first in range(0, blocks, BLOCKS_AT_ONCE):
        last = min(first + BLOCKS_AT_ONCE, blocks)
        for t in range(0, tokens, TOKENS):
            at = 0 if blocks <= BLOCKS_AT_ONCE else ROWS * t  # the same place for all groups stays in the first cache
            if first == 0:
                for i in range(at, at + ROWS * TOKENS, LANES):
                    store(sums, i, zero)
            for b in range(first, last):
                if last == blocks and b == max(first, blocks - AHEAD):
                    for i in range(t, t + TOKENS):
                        for c in range(0, ROWS, LANES):
                            prefetch_to_write(out, i * stride + column + c)
                group = t * blocks + TOKENS * b
                add_block(sums, at, x, PAIRS * group, x_scales, group, w, ROWS * PAIRS * b)
            if last == blocks:
                for i in range(t, min(t + TOKENS, tokens)):
                    for c in range(0, ROWS, LANES):
                        store(sums, at + c, load(sums, at + c) * load(w_scales, c))
                    if columns == ROWS:
                        for c in range(0, ROWS, LANES):
                            store(out, i * stride + column + c, load(sums, at + c))
                    else:
                        for c in range(columns):
                            out[i * stride + column + c] = sums[at + c]
                    at += ROWS


@kernel
def pack_inputs(x, width, blocks, packed, scales, start, stop):  # type: ignore[no-untyped-def]
    """Pack rows start … stop of x, flat float32 rows of `width` = blocks * BLOCK: int16 and their scales."""
    for r in range(start, stop):
        group, token = r // TOKENS, r % TOKENS
        for b in range(blocks):
            at = r * width + BLOCK * b
            squares, top = every(f32(0)), every(f32(0))
            for i in range(at, at + BLOCK, LANES):
                value = load(x, i)
                squares, top = multiply_add(value, value, squares), larger(absolute(value), top)
            norm = np.sqrt(sum_of_lanes(squares))  # NaN if one of them is
            scale = max(norm / NORM, largest_lane(top) / LARGEST) if norm == norm else norm
            scale = f32(0) if norm < TINY else scale
            inverse = f32(0) if norm < TINY else f32(1) / scale
            to = (group * blocks + b) * TOKENS + token
            scales[to] = scale
            for i in range(0, BLOCK, LANES):
                store(packed, to * BLOCK + i, float_bits(load(x, at + i) * inverse + MAGIC))


@kernel
def pack_weights(rows, count, width, blocks, across, offsets, packed, scales):  # type: ignore[no-untyped-def]
    """Pack decoded rows, flat float32 of `width`, into a tile. across, offsets: scratch of 512 float32 and 16 int64."""
    zero = every(f32(0))
    for start in range(0, count, LANES):
        for i in range(LANES):
            offsets[i] = width * min(start + i, count - 1)
        scale, not_finite = zero, zero
        for b in range(blocks):
            transpose_block(rows, offsets, b, across)
            squares, top = zero, zero
            for i in range(0, LANES * BLOCK, LANES):
                value = load(across, i)
                squares, top = multiply_add(value, value, squares), larger(absolute(value), top)
            norm = square_root(squares)
            scale = larger(scale, larger(top / LARGEST, norm / NORM))
            not_finite = not_finite + (norm - norm)
        small = scale < TINY / NORM
        inverse = where(small, zero, f32(1) / scale)
        store(scales, start, where(small, zero, scale) + not_finite)
        for b in range(blocks):
            transpose_block(rows, offsets, b, across)
            at = ROWS * PAIRS * b + start
            for p in range(PAIRS):
                low = float_bits(load(across, 2 * LANES * p) * inverse + MAGIC)
                high = float_bits(load(across, LANES * (2 * p + 1)) * inverse + MAGIC)
                store(packed, at + ROWS * p, (low & 0xFFFF) | (high << 16))


@inlined
def transpose_block(rows, offsets, b, across):  # type: ignore[no-untyped-def]
    """Transpose a block of sixteen rows: a column's values side by side."""
    for i in range(0, BLOCK, LANES):
        transpose_tile(rows, offsets, BLOCK * b + i, across, LANES * i)
