"""Blocks that mean exactly the values that they are made of: for values that were integers times a scale before.

An encoder rounds; here a scale is sought of which all values of a block are whole multiples, and the result is decoded
again: a block counts as exact where every value is equal to the one before, as float32 numbers. (Zeros have no sign
then: a format of integers has none for them.) Which scale and integers these were does not matter, only that there are
some. Products of a float16 scale and such integers are exact in float32, so that nothing depends on who computes them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError
from .format import Format, format_named
from .kernels import grid_units as units

Bytes = NDArray[np.uint8]
Codes = NDArray[Any]  # bytes: numpy's stubs lose which, as soon as they are shifted
Bits = NDArray[np.int32]
Floats = NDArray[np.float32]

PRECISION = {"F16": 11, "BF16": 8}  # bits of a number's value
E2M1_CODES = np.array([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], np.uint8)  # of twice the magnitude


class Wanted(NamedTuple):
    """Values in blocks of `size`, one after the other, as their float32 bits.

    precision: of the type that they were rounded to before, in bits; 0 where they are to be met exactly.
    """

    bits: Bits
    size: int
    precision: int


def exact_blocks(
    form: Format, values: Floats, rounded_to: Format | None = None
) -> tuple[Bytes, NDArray[np.bool_]]:  # fmt: skip
    """Rows in a format of EXACT, and which of their blocks are not exactly the values.

    values: float32 (n, width), finite or not, whole blocks → uint8 (n, bytes of a row), bool (n, blocks of a row).
    rounded_to: F16 or BF16, in which the values were stored: blocks also count as exact that give them when what they
    mean is rounded so. Raises FormatError for a format that is not in EXACT.
    """
    pack = EXACT.get(form.name)
    if pack is None:
        raise FormatError(f"{form.name} is no format that values are sought exactly in", f"{', '.join(EXACT)} are")
    count, per_row = len(values), values.shape[1] // form.block_size
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.int32)
    blocks = np.zeros(count * per_row, form.block)
    if len(blocks):
        pack(Wanted(bits, form.block_size, PRECISION[rounded_to.name] if rounded_to else 0), blocks)
    raw = blocks.view(np.uint8).reshape(count, form.row_bytes(values.shape[1]))
    meant = form.decode(raw)
    inexact = (meant if rounded_to is None else rounded_to.decode(rounded_to.encode(meant))) != values
    return raw, inexact.reshape(count, per_row, form.block_size).any(axis=2)


def formats_that_fit(width: int) -> list[Format]:
    """The formats of EXACT that rows of this width can have, the smallest first; of one size the simpler."""
    found = [form for form in map(format_named, EXACT) if width % form.block_size == 0]
    return sorted(found, key=lambda form: form.bits_per_weight)


def _room(size: int) -> NDArray[np.int64]:
    return np.empty(size, np.int64)


def _signed(wanted: Wanted, low: int, high: int, blocks: NDArray[Any]) -> Codes:
    """Puts the scales, returns the codes from 0 on: (blocks, size)."""
    bits, size = wanted.bits, wanted.size
    scales, codes = np.empty(len(blocks), np.float32), np.empty(len(bits), np.int8)
    units.fit_signed(bits.view(np.float32), bits, size, low, high, _room(size), scales, codes)
    if wanted.precision:
        units.fit_rounded(bits.view(np.float32), bits, size, low, high, wanted.precision, scales, codes)
    blocks["d"] = scales
    counted: Codes = (codes.reshape(-1, size) - np.int8(low)).view(np.uint8)
    return counted


def _pairs(codes: Codes) -> Codes:
    """The lower four bits of codes i and i + half in byte i."""
    half = codes.shape[-1] // 2
    joined: Codes = codes[..., :half] & 15 | (codes[..., half:] & 15) << 4
    return joined


def _fields(codes: Codes, bits: int) -> Codes:
    """Codes (…, 8 / bits, bytes), shifted each by its place and put together: (…, bytes)."""
    shifts = (np.arange(codes.shape[-2], dtype=np.uint8) * np.uint8(bits))[:, None]
    joined: Codes = np.bitwise_or.reduce(codes << shifts, axis=-2)
    return joined


def _q1_0(wanted: Wanted, blocks: NDArray[Any]) -> None:
    codes = _signed(wanted, -1, 1, blocks)
    blocks["qs"] = np.packbits(codes > 1, axis=1, bitorder="little")


def _q2_0(wanted: Wanted, blocks: NDArray[Any]) -> None:
    codes = _signed(wanted, -1, 2, blocks)
    blocks["qs"] = _fields(codes.reshape(-1, 16, 4).swapaxes(1, 2), 2)


def _tq1_0(wanted: Wanted, blocks: NDArray[Any]) -> None:
    codes = _signed(wanted, -1, 1, blocks)
    powers = np.array([81, 27, 9, 3, 1], np.uint16)[:, None]
    for at, count, digits, where in ((0, 32, 5, 0), (160, 16, 5, 32), (240, 4, 4, -1)):
        trits = codes[:, at : at + count * digits].reshape(-1, digits, count)
        packed = (((trits * powers[:digits]).sum(1, np.uint32) * 256 + 242) // 243).astype(np.uint8)
        if where < 0:
            blocks["qh"] = packed
        else:
            blocks["qs"][:, where : where + count] = packed


def _tq2_0(wanted: Wanted, blocks: NDArray[Any]) -> None:
    blocks["qs"] = _two_bits(_signed(wanted, -1, 1, blocks))


def _two_bits(codes: Codes) -> Codes:
    """Codes l, l + 32, l + 64, l + 96 of 128 in byte l of 32."""
    return _fields(codes.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)


def _four_bits(codes: Codes) -> Codes:
    """Codes l and l + 32 of 64 in byte l of 32."""
    return _pairs(codes.reshape(-1, 4, 64)).reshape(-1, 128)


def _q4_0(wanted: Wanted, blocks: NDArray[Any]) -> None:
    blocks["qs"] = _pairs(_signed(wanted, -8, 7, blocks))


def _q5_0(wanted: Wanted, blocks: NDArray[Any]) -> None:
    _put_five_bits(_signed(wanted, -16, 15, blocks), blocks)


def _put_five_bits(codes: Codes, blocks: NDArray[Any]) -> None:
    blocks["qs"] = _pairs(codes)
    blocks["qh"] = np.packbits(codes > 15, axis=1, bitorder="little").view("<u4")[:, 0]


def _q8_0(wanted: Wanted, blocks: NDArray[Any]) -> None:
    blocks["qs"] = (_signed(wanted, -128, 127, blocks) ^ np.uint8(128)).view(np.int8)


def _offset(top: int, wanted: Wanted, blocks: NDArray[Any]) -> None:
    bits, size = wanted.bits, wanted.size
    scales, lows = np.empty(len(blocks), np.float32), np.empty(len(blocks), np.float32)
    found = np.empty(len(bits), np.int8)
    units.fit_offset(bits, size, top, _room(size), scales, lows, found)
    blocks["d"], blocks["m"] = scales, lows
    codes = found.view(np.uint8).reshape(-1, size)
    if top > 15:
        _put_five_bits(codes, blocks)
    else:
        blocks["qs"] = _pairs(codes)


def _mxfp4(wanted: Wanted, blocks: NDArray[Any]) -> None:
    bits, size = wanted.bits, wanted.size
    exponents, found = np.empty(len(blocks), np.int32), np.empty(len(bits), np.int8)
    units.fit_powers(bits, size, _room(size), exponents, found)
    exponents += 128  # a code of 1 is half of what the block's exponent stands for
    blocks["e"] = np.where((exponents > 0) & (exponents < 255), exponents, 0)
    codes = E2M1_CODES[np.abs(found)] | np.where(found < 0, np.uint8(8), np.uint8(0))
    blocks["qs"] = _pairs(codes.reshape(-1, size))


def _signed_sub_blocks(
    low: int, high: int, top: int, bits: Bits, blocks: NDArray[Any]
) -> tuple[Codes, Codes]:
    """Puts the scales, returns the small ones (blocks, 16) and codes from 0 on (blocks, 256)."""
    scales, small = np.empty(len(blocks), np.float32), np.empty(16 * len(blocks), np.int8)
    codes = np.empty(len(bits), np.int8)
    units.fit_signed_sub_blocks(bits, low, high, top, _room(256), scales, small, codes)
    blocks["d"] = scales
    return small.reshape(-1, 16), (codes.reshape(-1, 256) - np.int8(low)).view(np.uint8)


def _q3_k(wanted: Wanted, blocks: NDArray[Any]) -> None:
    small, codes = _signed_sub_blocks(-4, 3, 31, wanted.bits, blocks)
    stored = (small + np.int8(32)).view(np.uint8)
    blocks["scales"][:, :8] = _pairs(stored)
    blocks["scales"][:, 8:] = _fields(stored.reshape(-1, 4, 4) >> 4, 2)
    blocks["hmask"] = _fields(codes.reshape(-1, 8, 32) >> 2, 1)
    blocks["qs"] = _two_bits(codes & 3)


def _q6_k(wanted: Wanted, blocks: NDArray[Any]) -> None:
    blocks["scales"], codes = _signed_sub_blocks(-32, 31, 127, wanted.bits, blocks)
    halves = codes.reshape(-1, 2, 128)
    blocks["ql"] = _pairs(halves).reshape(-1, 128)
    blocks["qh"] = _fields(halves.reshape(-1, 2, 4, 32) >> 4, 2).reshape(-1, 64)


def _offset_sub_blocks(
    size: int, high: int, top: int, bits: Bits, blocks: NDArray[Any]
) -> tuple[Codes, Codes, Codes]:
    """Puts both scales, which are one; returns the small ones and the minima (blocks, 256 / size) and the codes."""
    count = 256 // size
    scales, codes = np.empty(len(blocks), np.float32), np.empty(len(bits), np.int8)
    small, minima = np.empty(count * len(blocks), np.int8), np.empty(count * len(blocks), np.int8)
    units.fit_offset_sub_blocks(bits, size, high, top, _room(256), scales, small, minima, codes)
    blocks["d"] = blocks["dmin"] = scales
    found = small.reshape(-1, count), minima.reshape(-1, count), codes.reshape(-1, 256)
    return found[0].view(np.uint8), found[1].view(np.uint8), found[2].view(np.uint8)


def _q2_k(wanted: Wanted, blocks: NDArray[Any]) -> None:
    small, minima, codes = _offset_sub_blocks(16, 3, 15, wanted.bits, blocks)
    blocks["scales"] = small | minima << 4
    blocks["qs"] = _two_bits(codes)


def _q4_k(fifth: bool, wanted: Wanted, blocks: NDArray[Any]) -> None:
    small, minima, codes = _offset_sub_blocks(32, 31 if fifth else 15, 63, wanted.bits, blocks)
    blocks["scales"][:, :4] = small[:, :4] | small[:, 4:] >> 4 << 6
    blocks["scales"][:, 4:8] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    blocks["scales"][:, 8:] = small[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    blocks["qs"] = _four_bits(codes)
    if fifth:
        blocks["qh"] = _fields(codes.reshape(-1, 8, 32) >> 4, 1)


# What packs blocks, which come as zeros, as well as it can. The simpler formats go first.
EXACT: dict[str, Callable[[Wanted, NDArray[Any]], None]] = {
    "Q4_0": _q4_0, "Q8_0": _q8_0, "Q4_1": partial(_offset, 15), "Q5_0": _q5_0, "Q5_1": partial(_offset, 31),
    "MXFP4": _mxfp4, "Q1_0": _q1_0, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0, "Q2_0": _q2_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": partial(_q4_k, False), "Q5_K": partial(_q4_k, True), "Q6_K": _q6_k,
}  # fmt: skip
