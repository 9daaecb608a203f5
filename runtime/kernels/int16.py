"""Matrix products in 16-bit integers: near-float32 results at about twice the speed of float32.

Rows of both factors are cut into blocks of 32 columns, each with a scale that makes its values integers of 16 bits
whose squares sum to less than 2³¹: by the inequality of Cauchy and Schwarz no sum of products of two of them leaves 32
bits. A block's integers are multiplied and summed exactly; the sums, times both scales, are added in float32. What is
lost is the rounding to integers: 5e-5 of a result's size (bfloat16 loses 6e-3), where float32 itself loses 4e-7.

Only processors with an instruction for it (`available`) are faster at this than at float32: AVX512-VNNI multiplies 32
pairs in the time of 16 in float32. `vpdpwssd` stands here as assembly since LLVM replaces it on Intel's processors by
two instructions that take twice as long.

Inputs: int16 (n, 32 * blocks) with float32 scales (n, blocks), n a multiple of TOKENS, rows beyond the input zero.
Weights: tiles of ROWS rows, for each block 16 pairs of columns, each pair of all ROWS rows side by side as int32; and
float32 scales (blocks, ROWS).
"""

import functools
from collections.abc import Iterator
from typing import Any

import llvmlite.binding
import numba.core.types as nt
import numpy as np
from llvmlite import ir
from numba.core import cgutils, config
from numba.extending import intrinsic

from quants.kernels.jit import kernel
from quants.kernels.lane_memory import address_of, load, load_at, store, transpose_tile
from quants.kernels.lanes import (
    FLOAT,
    FLOATS,
    INDEX,
    LANES,
    WORD,
    WORDS,
    absolute,
    every,
    f32x16,
    float_bits,
    larger,
    largest_lane,
    splat,
    square_root,
    where,
)

from .shorts import multiply_add, sum_of_lanes

BLOCK, PAIRS = 32, 16
TOKENS, ROWS = 3, 64  # of a register tile: 12 integer and 12 float sums, four of weights and one of inputs fit 32
VECTORS = ROWS // LANES
NORM = np.float32(46330)  # of a block's integers; with their rounding 46333, and 46333² < 2³¹
LARGEST = np.float32(32767)
TINY = np.float32(1e-17)  # blocks below it count as zeros: their squares are not all normal numbers
BLOCKS_AT_ONCE = 64  # 256 kB of weights stay in the second cache while the inputs pass
# 1.5 * 2²³: floats are one apart there, and the low half of their bits is the integer in two's complement
MAGIC = np.float32(12582912)

f32 = np.float32
sums_type: Any = nt.UniTuple(f32x16, TOKENS * VECTORS)  # type: ignore[attr-defined]


@functools.cache
def available() -> bool:
    """Whether the processor multiplies 16-bit integers faster than float32."""
    features = config.CPU_FEATURES
    if features is None:
        features = llvmlite.binding.get_host_cpu_features().flatten()
    return {"+avx512f", "+avx512bw", "+avx512vnni"} <= set(features.split(","))


llvmlite.binding.initialize_native_asmparser()


@intrinsic
def no_sums(typing):  # type: ignore[no-untyped-def]
    """Zeros for `add_block`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = [ir.Constant(FLOATS, [0.0] * LANES)] * (TOKENS * VECTORS)
        return context.make_tuple(builder, signature.return_type, zeros)

    return sums_type(), codegen


@intrinsic
def load_sums(typing, source, at, stride):  # type: ignore[no-untyped-def]
    """Sums as `store_sums` left them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = []
        for pointer in _places(context, builder, signature.args[0], args[0], args[1], args[2]):
            found.append(builder.load(pointer))
            found[-1].align = 4
        return context.make_tuple(builder, signature.return_type, found)

    return sums_type(source, nt.intp, nt.intp), codegen


@intrinsic
def store_sums(typing, target, at, stride, sums):  # type: ignore[no-untyped-def]
    """Sums of each token to ROWS elements of a float32 array from at + stride * token on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = _places(context, builder, signature.args[0], args[0], args[1], args[2])
        for pointer, value in zip(places, cgutils.unpack_tuple(builder, args[3]), strict=True):
            builder.store(value, pointer).align = 4
        return context.get_dummy_value()

    return nt.void(target, nt.intp, nt.intp, sums_type), codegen


def _places(context: Any, builder: Any, array: Any, value: Any, at: Any, stride: Any) -> Iterator[Any]:
    for token in range(TOKENS):
        row = builder.add(at, builder.mul(stride, ir.Constant(INDEX, token)))
        for v in range(VECTORS):
            yield address_of(context, builder, array, value, builder.add(row, ir.Constant(INDEX, LANES * v)), FLOATS)


@intrinsic
def add_block(  # type: ignore[no-untyped-def]
    typing, sums, x, x_at, width, x_scales, scales_at, blocks, w, w_at, w_scales, w_scales_at
):
    """sums + the products of a block of TOKENS inputs and one of ROWS weights.

    x (int32 pairs): token t's begin at x_at + width * t; x_scales: at scales_at + blocks * t; w, w_scales: at w_at and
    w_scales_at.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = dict(zip(("sums", "x", "x_at", "width", "xs", "xs_at", "blocks", "w", "w_at", "ws", "ws_at"),
                         zip(signature.args, args, strict=True), strict=True))  # fmt: skip

        def vector(name: str, offset: int, kind: Any) -> Any:
            at = builder.add(kinds[f"{name}_at"][1], ir.Constant(INDEX, offset))
            return load_at(context, builder, *kinds[name], at, kind)

        def everywhere(name: str, stride: str, token: int, offset: int, kind: Any, lanes: Any) -> Any:
            at = builder.add(kinds[f"{name}_at"][1], builder.mul(kinds[stride][1], ir.Constant(INDEX, token)))
            at = builder.add(at, ir.Constant(INDEX, offset))
            return splat(builder, load_at(context, builder, *kinds[name], at, kind), lanes)

        dot = ir.InlineAsm(ir.FunctionType(WORDS, [WORDS] * 3), "vpdpwssd $2, $1, $0", "=v,v,v,0")
        tokens = range(TOKENS)
        products = [[ir.Constant(WORDS, [0] * LANES)] * VECTORS for _ in tokens]
        for p in range(PAIRS):
            weights = [vector("w", ROWS * p + LANES * v, WORDS) for v in range(VECTORS)]
            for t in tokens:
                inputs = everywhere("x", "width", t, p, WORD, WORDS)
                products[t] = [builder.call(dot, [weights[v], inputs, products[t][v]]) for v in range(VECTORS)]
        scales = [vector("ws", LANES * v, FLOATS) for v in range(VECTORS)]
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), "llvm.fma.v16f32")
        before, after = cgutils.unpack_tuple(builder, args[0]), []
        for t in tokens:
            own = everywhere("xs", "blocks", t, 0, FLOAT, FLOATS)
            for v in range(VECTORS):
                scaled = builder.fmul(builder.sitofp(products[t][v], FLOATS), own)
                after.append(builder.call(fma, [scaled, scales[v], before[VECTORS * t + v]]))
        return context.make_tuple(builder, sums_type, after)

    index = nt.intp
    return sums_type(sums, x, index, index, x_scales, index, index, w, index, w_scales, index), codegen


@kernel
def multiply(x, x_scales, w, w_scales, tokens, blocks, sums, out, column, columns, stride):  # type: ignore[no-untyped-def]
    """out[t * stride + column + i] = input t times row i of a tile, for its first `columns` rows.

    x: pairs as int32. sums: room for ROWS float32 of each token, the last tile's of TOKENS whole.
    """
    width = PAIRS * blocks
    for first in range(0, blocks, BLOCKS_AT_ONCE):
        last = min(first + BLOCKS_AT_ONCE, blocks)
        for t in range(0, tokens, TOKENS):
            so_far = no_sums() if first == 0 else load_sums(sums, ROWS * t, ROWS)
            for b in range(first, last):
                so_far = add_block(
                    so_far, x, t * width + PAIRS * b, width, x_scales, t * blocks + b, blocks,
                    w, ROWS * PAIRS * b, w_scales, ROWS * b,
                )  # fmt: skip
            if last == blocks and columns == ROWS and t + TOKENS <= tokens:
                store_sums(out, t * stride + column, stride, so_far)
            else:
                store_sums(sums, ROWS * t, ROWS, so_far)
                if last == blocks:
                    for i in range(t, min(t + TOKENS, tokens)):
                        for c in range(columns):
                            out[i * stride + column + c] = sums[ROWS * i + c]


@kernel
def pack_inputs(x, width, blocks, packed, scales, start, stop):  # type: ignore[no-untyped-def]
    """Rows start … stop of x, flat float32 rows of `width`, a multiple of BLOCK: int16 and their scales."""
    for r in range(start, stop):
        for b in range(blocks):
            at = r * width + BLOCK * b
            low, high = load(x, at), load(x, at + LANES)
            norm = np.sqrt(sum_of_lanes(low * low + high * high))  # NaN where one of them is
            top = largest_lane(larger(absolute(low), absolute(high)))
            scale = f32(0) if norm < TINY else max(norm / NORM, top / LARGEST) if norm == norm else norm
            inverse = f32(0) if norm < TINY else f32(1) / scale
            scales[r * blocks + b] = scale
            store(packed, at, float_bits(low * inverse + MAGIC))
            store(packed, at + LANES, float_bits(high * inverse + MAGIC))


@kernel
def pack_weights(rows, count, width, blocks, across, offsets, packed, scales):  # type: ignore[no-untyped-def]
    """Decoded rows, flat float32 of `width`, to a tile. across, offsets: room for 512 float32 and 16 int64."""
    zero = every(f32(0))
    for start in range(0, count, LANES):
        for i in range(LANES):
            offsets[i] = width * min(start + i, count - 1)
        for b in range(blocks):
            transpose_tile(rows, offsets, BLOCK * b, across, 0)
            transpose_tile(rows, offsets, BLOCK * b + LANES, across, LANES * LANES)
            squares, top = zero, zero
            for i in range(0, LANES * BLOCK, LANES):
                value = load(across, i)
                squares, top = multiply_add(value, value, squares), larger(absolute(value), top)
            norm = square_root(squares)
            scale = larger(top / LARGEST, norm / NORM)  # the norm where it is NaN
            scale, inverse = where(norm < TINY, zero, scale), where(norm < TINY, zero, f32(1) / scale)
            store(scales, ROWS * b + start, scale)
            at = ROWS * PAIRS * b + start
            for p in range(PAIRS):
                low = float_bits(load(across, 2 * LANES * p) * inverse + MAGIC)
                high = float_bits(load(across, LANES * (2 * p + 1)) * inverse + MAGIC)
                store(packed, at + ROWS * p, (low & 0xFFFF) | (high << 16))
