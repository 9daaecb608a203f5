"""Blocks in sixteens: their offsets, their importance weights, and the assembly of their bytes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from .half import from_half, to_half
from .jit import inlined, inlined_once
from .lane_memory import block_offsets, load, put_quads, put_tile, put_words, rooms, store, transpose
from .lanes import LANES, Lanes, every, every_int, lane, lane_numbers, square_root

Floats = NDArray[np.float32]
Words = NDArray[np.int32]
Offsets = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def flat(array: NDArray[Any]) -> NDArray[Any]:
    """Return a one-dimensional read-only view of a C-contiguous array: one compiled kernel then serves all arrays."""
    view = array.reshape(-1)
    view.flags.writeable = False
    return view


def value_rows(form: Format, raw: Bytes) -> Floats:
    """Return an empty array for the values of rows of the format's blocks."""
    return np.empty((len(raw), raw.shape[1] // form.block_bytes * form.block_size), np.float32)


class Memory(NamedTuple):
    """Arrays of an encoder, for sixteen blocks or rows."""

    starts: Offsets  # where they are read
    targets: Offsets  # where they are written
    x: Floats
    weights: Floats
    scratch: Floats
    limited: Floats  # values limited so that their codes are in range
    scales: Floats  # of each sub-block; results of the search for them
    minima: Floats
    lows: Floats
    inverses: Floats
    sums: Floats  # of weights
    scale_codes: Words  # scales and minima as they are stored
    minimum_codes: Words
    codes: Words
    words: Words  # to be written


def working_memory(width: int) -> Memory:
    """Allocate memory for blocks of up to 256 values in up to 16 sub-blocks, or for whole rows of `width` values and
    some spare.
    """
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    arrays = rooms(max(width, 256) + 128, 256, 256, 256, *[16] * 7, 256, 256)
    return Memory(starts, targets, *arrays[:9], *(words.view(np.int32) for words in arrays[9:]))


class Kernels(NamedTuple):
    """The kernels of a format: encode(x, importance, memory, raw), importance empty, and decode(raw, values)."""

    encode: Any
    weighted: Any  # as `encode`, with importance weights
    decode: Any


def codec(kernels: dict[str, Kernels]) -> tuple[Callable[..., Bytes], Callable[[Format, Bytes], Floats]]:
    """Return `encode` and `decode` of a module, as `quants.format` has them, from its kernels for each format."""

    def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
        raw = np.empty((len(rows), form.row_bytes(rows.shape[1])), np.uint8)
        kernel = kernels[form.name].encode if importance is None else kernels[form.name].weighted
        kernel(flat(rows), columns(importance), working_memory(rows.shape[1]), raw.reshape(-1))
        return raw

    def decode(form: Format, raw: Bytes) -> Floats:
        values = value_rows(form, raw)
        kernels[form.name].decode(flat(raw), values.reshape(-1))
        return values

    return encode, decode


def columns(importance: Floats | None) -> Floats:
    """Return the importance argument of kernels: an empty array for None."""
    return flat(np.empty(0, np.float32) if importance is None else importance)


def field_offsets(block: np.dtype[Any]) -> tuple[int, ...]:
    """Return the byte offset of each field of a block, in the order of declaration."""
    assert block.fields
    return tuple(block.fields[name][1] for name in block.names or ())


@inlined
def load_blocks(x: Floats, first: int, size: int, block_bytes: int, memory: Memory) -> None:
    """Lay blocks first … first + 15, of `size` values, side by side."""
    block_offsets(first, x.size // size, size, memory.starts)
    block_offsets(first, x.size // size, block_bytes, memory.targets)
    transpose(x, memory.starts, size, memory.x)


@inlined
def load_importance(x: Floats, importance: Floats, first: int, size: int, starts: Offsets, weights: Floats) -> None:
    """Load the importance of the same blocks' columns as weights."""
    count, per_row = x.size // size, importance.size // size
    column = min(first, count - 1) % per_row
    for i in range(LANES):
        starts[i] = size * column
        if first + i < count - 1:  # counted, because sixteen divisions are slow
            column = column + 1 if column + 1 < per_row else 0
    transpose(importance, starts, size, weights)


@inlined_once
def bytes_to_words(codes: Words, words: Words, count: int) -> None:
    """Pack every four codes of a lane, each under 256, to a word: words[k] = codes[4k] | codes[4k + 1] << 8 | …"""
    for k in range(0, count // 4):
        at = 4 * LANES * k
        low = load(codes, at) | (load(codes, at + LANES) << 8)
        high = load(codes, at + 2 * LANES) | (load(codes, at + 3 * LANES) << 8)
        store(words, LANES * k, low | (high << 16))


@inlined
def load_half(raw: NDArray[Any], at: int) -> Lanes:
    """Return the float16 in bytes at, at + 1, in every lane."""
    return from_half(every_int(raw[at] & 255 | (raw[at + 1] & 255) << 8))


@inlined
def put_half(raw: Bytes, at: int, value: np.float32) -> None:
    """Write a float16 to bytes at, at + 1."""
    bits = lane(to_half(every(value)), 0)
    raw[at], raw[at + 1] = bits, bits >> 8


@inlined
def scalar_word(raw: Bytes, at: int) -> Any:
    """Return the 32 bits in bytes at … at + 3 as a non-negative number."""
    return np.int64(raw[at]) | np.int64(raw[at + 1]) << 8 | np.int64(raw[at + 2]) << 16 | np.int64(raw[at + 3]) << 24


@inlined
def load_word(raw: Bytes, at: int) -> Lanes:
    """Return the 32 bits in bytes at … at + 3, in every lane."""
    return every_int(scalar_word(raw, at))


@inlined_once
def put_all(out: Bytes, offsets: Offsets, at: int, words: Words, count: int) -> None:
    """Write the first `count` words of each lane to bytes offsets[lane] + at … of `out`."""
    tiles = count - count % LANES
    quads = count - count % 4
    for k in range(0, tiles, LANES):
        put_tile(out, offsets, at + 4 * k, words, LANES * k)
    for k in range(tiles, quads, 4):
        put_quads(out, offsets, at + 4 * k, words, LANES * k)
    for k in range(quads, count):
        put_words(out, offsets, at + 4 * k, load(words, LANES * k))


@inlined
def sum_of_squares(x: Floats, at: int, count: int) -> Lanes:
    """Return the sum of squares of `count` values of each lane from `at` on, first to last."""
    total = load(x, at) * load(x, at)
    for i in range(1, count):
        v = load(x, at + LANES * i)
        total += v * v
    return total


@inlined
def weigh(x: Floats, weights: Floats, mean_square: Lanes, count: int) -> None:
    """Compute weights = importance * sqrt(mean_square + x * x) for `count` values of each lane; importance: the weights
    on entry.
    """
    for i in range(0, LANES * count, LANES):
        v = load(x, i)
        store(weights, i, load(weights, i) * square_root(mean_square + v * v))


@inlined
def weigh_by_squares(x: Floats, weights: Floats, count: int) -> None:
    """Compute weights = x * x for `count` values of each lane."""
    for i in range(0, LANES * count, LANES):
        v = load(x, i)
        store(weights, i, v * v)


@inlined
def weigh_columns(x: Floats, importance: Floats, mean_square: Lanes, weights: Floats) -> None:
    """Compute weights = importance * sqrt(mean_square + x * x) where all lanes have the same columns: one importance
    for each.
    """
    for i in range(importance.size):
        v = load(x, LANES * i)
        store(weights, LANES * i, square_root(mean_square + v * v) * importance[i])


@inlined
def put_codes(codes: Words, fifth: bool, raw: Bytes, targets: Offsets, at: int) -> None:
    """Write 32 codes of each lane from byte `at` on: 16 bytes, byte i the lower four bits of codes i and i + 16.

    fifth: before these, bit i of a word is the fifth bit of code i.
    """
    bytes_to_words(codes, codes, 2 * LANES)
    if fifth:
        high = every_int(0)
        for k in range(8):  # one bit of each of four bytes, spread together
            bits = (load(codes, LANES * k) >> 4) & 0x01010101
            high |= ((bits | (bits >> 7) | (bits >> 14) | (bits >> 21)) & 15) << (4 * k)
        put_words(raw, targets, at, high)
        at += 4
    for k in range(4):
        low = load(codes, LANES * k) & 0x0F0F0F0F
        store(codes, LANES * k, low | ((load(codes, LANES * (k + 4)) & 0x0F0F0F0F) << 4))
    put_all(raw, targets, at, codes, 4)


@inlined
def load_codes(raw: Bytes, at: int, fifth: bool) -> tuple[Lanes, Lanes]:
    """Return codes 0 … 15 and 16 … 31, as `put_codes` wrote them."""
    if fifth:
        high, q = load_word(raw, at) >> lane_numbers(), load(raw, at + 4)
        return q & 15 | (high & 1) << 4, q >> 4 | (high >> 16 & 1) << 4
    q = load(raw, at)
    return q & 15, q >> 4
