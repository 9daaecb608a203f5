"""Matrix products rounded as in llama.cpp: inputs of 8 bits with a scale for each 32, weights as their own integers.

Only the inputs are rounded: weights are codes from 0 to 255 with a scale for each 16 or 32 of a row, less a constant of
the format (`zero`) and a minimum of the group. Products of a group are summed exactly; the sums, times both scales, are
added in float32. `vpdpbusd` multiplies 64 pairs in the time of 16 in float32.

Inputs: for each TOKENS rows (those beyond the input zero) and each block of 32 the rows' int8, one after the other;
float32 scales and three int32 in the same order: sums of the first 16, of the others, and of all. Weights: tiles of
ROWS rows; for each block 8 times four columns of all ROWS rows side by side as int32; for each group ROWS float32
scales, and as many minima.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from quants.kernels.jit import kernel
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
    every_int,
    float_bits,
    lane,
    larger,
    largest_lane,
    lowest_bit,
    mask_bits,
    smaller,
    splat,
    to_float,
    where,
)
from quants.kernels.numba_internals import cgutils, intrinsic, ir, nt

from .exponential import MAGIC
from .int16 import summing
from .int16x32 import load_small, prefetch_to_write, sum_of_lanes

BLOCK, QUADS = 32, 8
TOKENS, ROWS = 6, 64  # of a register tile: 24 sums, four vectors of weights and one of inputs fit 32
VECTORS = ROWS // LANES
UNROLLED = 4  # quads of columns, half a block
SUMS = 3  # stored for each input and block
BLOCKS_AT_ONCE = 64  # 128 kB of weights stay in the second cache while the inputs pass
AHEAD = 8  # blocks before the last: results are prefetched in time
SUPER = 256
TOP = np.float32(127)

f32 = np.float32


@intrinsic
def add_group(  # type: ignore[no-untyped-def]
    typing,
    sums,
    sums_at,
    x,
    x_at,
    scales,
    sum_step,
    x_sums,
    block_at,
    w,
    w_at,
    w_scales,
    group_at,
    minima,
    zero,
    halves,
    has_minima,
):
    """Add the products of a group of TOKENS inputs and one of ROWS weights to sums, float32, at sums_at + ROWS * t.

    x, w (int32): the group begins at x_at, w_at. scales, x_sums: of the block, which is the block_at-th in memory;
    sum_step: which of its sums is the group's. w_scales, minima: at group_at. halves: how many 16 columns it has.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        group = _Group(context, builder, *(dict(zip(_NAMES, each, strict=True)) for each in (args, signature.args)))
        sums_of = group.sums_of_inputs()
        products = group.multiply(sums_of)
        there = builder.icmp_signed("!=", group.values["has_minima"], group.number(0))
        with builder.if_else(there) as (then, otherwise):
            with then:
                group.add(products, sums_of, [group.vector("minima", LANES * v) for v in range(VECTORS)])
            with otherwise:
                group.add(products, sums_of, None)
        return context.get_dummy_value()

    arguments = [
        sums,
        nt.intp,
        x,
        nt.intp,
        scales,
        nt.intp,
        x_sums,
        nt.intp,
        w,
        nt.intp,
        w_scales,
        nt.intp,
        minima,
        nt.intp,
        nt.intp,
        nt.intp,
    ]
    return nt.void(*arguments), codegen


_NAMES = (
    "sums",
    "sums_at",
    "x",
    "x_at",
    "scales",
    "sum_step",
    "x_sums",
    "block_at",
    "w",
    "w_at",
    "w_scales",
    "group_at",
    "minima",
    "zero",
    "halves",
    "has_minima",
)


@dataclass
class _Group:
    """Emits the code of `add_group`: its arguments' values and types by name."""

    context: Any
    builder: Any
    values: dict[str, Any]
    types: dict[str, Any]

    @staticmethod
    def number(value: int) -> Any:
        return ir.Constant(INDEX, value)

    def plus(self, name: str, offset: int) -> Any:
        """Return an argument plus a number."""
        return self.builder.add(self.values[name], self.number(offset))

    def read(self, name: str, at: Any, llvm_type: Any) -> Any:
        return load_at(self.context, self.builder, self.types[name], self.values[name], at, llvm_type)

    def vector(self, name: str, offset: int) -> Any:
        """Return LANES rows of the group's weights."""
        return self.read(name, self.plus("group_at", offset), FLOATS)

    def sums_of_inputs(self) -> list[Any]:
        """Return the sum of each input's integers in the group."""
        begins = [self.builder.mul(self.plus("block_at", t), self.number(SUMS)) for t in range(TOKENS)]
        return [self.read("x_sums", self.builder.add(begin, self.values["sum_step"]), WORD) for begin in begins]

    def multiply(self, sums_of: list[Any]) -> list[list[Any]]:
        """Multiply inputs by weights less `zero`; return the integers of each input and vector of rows."""
        builder, tokens, vectors = self.builder, range(TOKENS), range(VECTORS)
        negative = builder.neg(builder.trunc(self.values["zero"], WORD))
        begin = [splat(builder, builder.mul(each, negative), WORDS) for each in sums_of]
        products = [[cgutils.alloca_once_value(builder, begin[t]) for _ in vectors] for t in tokens]
        for t in tokens:  # allocations are at the function's beginning, so it is set here
            for v in vectors:
                builder.store(begin[t], products[t][v])
        dot = summing("vpdpbusd")
        with cgutils.for_range(builder, self.values["halves"]) as loop:
            for u in range(UNROLLED):
                q = builder.add(builder.mul(loop.index, self.number(UNROLLED)), self.number(u))
                at = builder.add(self.values["w_at"], builder.mul(q, self.number(ROWS)))
                weights = [self.read("w", builder.add(at, self.number(LANES * v)), WORDS) for v in vectors]
                for t in tokens:
                    place = builder.add(self.plus("x_at", QUADS * t), q)
                    quad = splat(builder, self.read("x", place, WORD), WORDS)
                    for v in vectors:
                        total = builder.call(dot, [weights[v], quad, builder.load(products[t][v])])
                        builder.store(total, products[t][v])
        return products

    def add(self, products: list[list[Any]], sums_of: list[Any], minima: list[Any] | None) -> None:
        """Add scaled products, less minima times the sums of inputs, to the sums."""
        builder = self.builder
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), "llvm.fma.v16f32")
        factors = [self.vector("w_scales", LANES * v) for v in range(VECTORS)]
        for t in range(TOKENS):
            number = self.read("scales", self.plus("block_at", t), FLOAT)
            scale = splat(builder, number, FLOATS)
            whole = builder.fmul(builder.sitofp(sums_of[t], FLOAT), number)
            less = splat(builder, builder.fneg(whole), FLOATS)
            for v in range(VECTORS):
                place = self.plus("sums_at", ROWS * t + LANES * v)
                total = self.read("sums", place, FLOATS)
                product = builder.sitofp(builder.load(products[t][v]), FLOATS)
                total = builder.call(fma, [product, builder.fmul(factors[v], scale), total])
                if minima is not None:
                    total = builder.call(fma, [minima[v], less, total])
                store_at(self.context, builder, self.types["sums"], self.values["sums"], place, total)


@kernel
def multiply(  # type: ignore[no-untyped-def]
    x, scales, x_sums, w, w_scales, minima, has_minima, zero, groups, tokens, blocks, sums, out, column, columns, stride
):
    """Compute out[t * stride + column + i] = input t times row i of a tile, for its first `columns` rows.

    groups: of a block, 1 or 2. sums: scratch of ROWS float32 for each token, the last group of TOKENS complete.
    """
    none = every(f32(0))
    for first in range(0, blocks, BLOCKS_AT_ONCE):
        last = min(first + BLOCKS_AT_ONCE, blocks)
        for t in range(0, tokens, TOKENS):
            at = 0 if blocks <= BLOCKS_AT_ONCE else ROWS * t  # the same place for all stays in the first cache
            if first == 0:
                for i in range(at, at + ROWS * TOKENS, LANES):
                    store(sums, i, none)
            for b in range(first, last):
                if last == blocks and b == max(first, blocks - AHEAD):
                    for i in range(t, t + TOKENS):
                        for c in range(0, ROWS, LANES):
                            prefetch_to_write(out, i * stride + column + c)
                block = t * blocks + TOKENS * b
                for g in range(groups):
                    half = QUADS // 2 * g
                    add_group(
                        sums,
                        at,
                        x,
                        QUADS * block + half,
                        scales,
                        2 if groups == 1 else g,
                        x_sums,
                        block,
                        w,
                        ROWS * (QUADS * b + half),
                        w_scales,
                        ROWS * (groups * b + g),
                        minima,
                        zero,
                        3 - groups,
                        has_minima,
                    )
            if last == blocks:
                for i in range(t, min(t + TOKENS, tokens)):
                    if columns == ROWS:
                        for c in range(0, ROWS, LANES):
                            store(out, i * stride + column + c, load(sums, at + c))
                    else:
                        for c in range(columns):
                            out[i * stride + column + c] = sums[at + c]
                    at += ROWS


@kernel
def round_q8_0(x, width, out, scales, start, stop):  # type: ignore[no-untyped-def]
    """Round rows start … stop of x, flat float32 rows, to int8 in rows; scales: of each 32, before they are float16.

    The same integers as from `eight_bits.through_q8_0`. NaN in a block makes its scale NaN.
    """
    for at in range(start * width, stop * width, BLOCK):
        low, high = load(x, at), load(x, at + LANES)
        top = largest_lane(larger(absolute(low), absolute(high)))
        inverse = every(TOP / top if top > f32(0) else f32(0))
        low, high = low * inverse, high * inverse
        store(out, at, float_bits(low + MAGIC))
        store(out, at + LANES, float_bits(high + MAGIC))
        scales[at // BLOCK] = top / TOP + sum_of_lanes((low - low) + (high - high))


@kernel
def round_q8_k(x, width, out, scales, start, stop):  # type: ignore[no-untyped-def]
    """Round rows as `eight_bits.through_q8_k` does for each 256; scales: of each 32 of them."""
    for at in range(start * width, stop * width, SUPER):
        size = every(f32(0))
        for i in range(at, at + SUPER, LANES):
            size = larger(absolute(load(x, i)), size)
        greatest = largest_lane(size)
        top = greatest
        for i in range(at, at + SUPER, LANES):
            value = load(x, i)
            bits = mask_bits(absolute(value) == greatest)
            if bits != 0:
                top = lane(value, lowest_bit(bits))
                break
        inverse = -TOP / top if top != f32(0) else f32(0)
        lost = every(f32(0))
        for i in range(at, at + SUPER, LANES):
            value = load(x, i) * inverse
            lost = lost + (value - value)
            store(out, i, float_bits(smaller(value, every(TOP)) + MAGIC))
        scale = (f32(1) / inverse if top != f32(0) else f32(0)) + sum_of_lanes(lost)
        for i in range(SUPER // BLOCK):
            scales[at // BLOCK + i] = scale


@kernel
def arrange_inputs(rows, row_scales, blocks, packed, scales, sums, start, stop):  # type: ignore[no-untyped-def]
    """Arrange rows start … stop of int8 rows and their scales for `multiply`; packed: int8."""
    for r in range(start, stop):
        group, token = r // TOKENS, r % TOKENS
        for b in range(blocks):
            at, to = r * blocks + b, (group * blocks + b) * TOKENS + token
            scales[to] = row_scales[at]
            low, high = load_small(rows, BLOCK * at), load_small(rows, BLOCK * at + LANES)
            store(packed, BLOCK * to, low)
            store(packed, BLOCK * to + LANES, high)
            first, second = np.int32(sum_of_lanes(to_float(low))), np.int32(sum_of_lanes(to_float(high)))
            sums[SUMS * to], sums[SUMS * to + 1], sums[SUMS * to + 2] = first, second, first + second


@kernel
def pack_weights(rows, count, width, blocks, groups, scales, minima, zero, across, offsets, packed):  # type: ignore[no-untyped-def]
    """Pack decoded rows, flat float32 of `width`, into a tile, by its scales and minima (zero if there are none).

    across, offsets: scratch of 256 float32 and 16 int64.
    """
    for start in range(0, count, LANES):
        for i in range(LANES):
            offsets[i] = width * min(start + i, count - 1)
        for half in range(2 * blocks):
            transpose_tile(rows, offsets, LANES * half, across, 0)
            of_group = ROWS * (half if groups == 2 else half // 2) + start
            scale, minimum = load(scales, of_group), load(minima, of_group)
            inverse = where(scale == f32(0), f32(0), f32(1) / scale)
            at = ROWS * (QUADS // 2) * half + start
            for q in range(QUADS // 2):
                word = every_int(0)
                for k in range(4):
                    value = (load(across, LANES * (4 * q + k)) + minimum) * inverse
                    word = word | (((float_bits(value + MAGIC) + zero) & 0xFF) << (8 * k))
                store(packed, at + ROWS * q, word)
