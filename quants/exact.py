"""Find blocks that decode to exactly the given values, for values that were integers times a scale before.

An encoder rounds. Here a scale is sought of which all values of a block are whole multiples, and the result is decoded
again: a block counts as exact if every value is equal to the original as float32. (Zeros have no sign then: a format of
integers has none for them.) The original scale and integers need not be found again; any that fit will do. Products of
a float16 scale and such integers are exact in float32, so the result does not depend on who computes them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .codes import Codes, Plane
from .errors import FormatError
from .feedback import put_codes
from .format import Format, format_named
from .kernels import grid_units as units

Bytes = NDArray[np.uint8]
Chosen = NDArray[np.uint8]  # codes, from 0 on
Bits = NDArray[np.int32]
Floats = NDArray[np.float32]

PRECISION = {"F16": 11, "BF16": 8}  # bits of a number's value
Q3_K_SCALES = Codes(1, (Plane(96, 4, 8), Plane(104, 2, 4, place=4)))
E2M1_CODES = np.array([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], np.uint8)  # of twice the magnitude


class Wanted(NamedTuple):
    """The values to encode, in blocks of `size`, one after the other, as their float32 bits.

    precision: of the type that they were rounded to before, in bits; 0 to match them exactly.
    """

    bits: Bits
    size: int
    precision: int


def exact_blocks(form: Format, values: Floats, rounded_to: Format | None = None) -> tuple[Bytes, NDArray[np.bool_]]:
    """Encode rows in a format of EXACT and report which blocks are not exactly the values.

    values: float32 (n, width), finite or not, whole blocks → uint8 (n, bytes of a row), bool (n, blocks of a row).
    rounded_to: F16 or BF16, the type that the values were stored in: blocks whose decoded values round to the given
    ones also count as exact. Raises FormatError for a format that is not in EXACT.
    """
    pack = EXACT.get(form.name)
    if pack is None:
        raise FormatError(f"{form.name} is no format that values are sought exactly in", f"{', '.join(EXACT)} are")
    count, per_row = len(values), values.shape[1] // form.block_size
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.int32)
    blocks = np.zeros(count * per_row, form.block)
    if len(blocks):
        chosen = pack(Wanted(bits, form.block_size, PRECISION[rounded_to.name] if rounded_to else 0), blocks)
        if form.codes:
            put_codes(form.codes, _bytes_of(blocks), chosen)
    raw = blocks.view(np.uint8).reshape(count, form.row_bytes(values.shape[1]))
    meant = form.decode(raw)
    inexact = (meant if rounded_to is None else rounded_to.decode(rounded_to.encode(meant))) != values
    return raw, inexact.reshape(count, per_row, form.block_size).any(axis=2)


def formats_that_fit(width: int) -> list[Format]:
    """Return the formats of EXACT that fit rows of this width, the smallest first; of equal size the simpler first."""
    formats = [form for form in map(format_named, EXACT) if width % form.block_size == 0]
    return sorted(formats, key=lambda form: form.bits_per_weight)


def _room(size: int) -> NDArray[np.int64]:
    return np.empty(size, np.int64)


def _bytes_of(blocks: NDArray[Any]) -> Bytes:
    return blocks.view(np.uint8).reshape(len(blocks), -1)


def _signed(low: int, high: int, wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    """Write the scales into the blocks; return the codes (blocks, size)."""
    bits, size = wanted.bits, wanted.size
    scales, codes = np.empty(len(blocks), np.float32), np.empty(len(bits), np.int8)
    units.fit_signed(bits.view(np.float32), bits, size, low, high, _room(size), scales, codes)
    if wanted.precision:
        units.fit_rounded(bits.view(np.float32), bits, size, low, high, wanted.precision, scales, codes)
    blocks["d"] = scales
    counted: Chosen = (codes.reshape(-1, size) - np.int8(low)).view(np.uint8)
    return counted


def _q1_0(wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    """Encode Q1_0. Zeros have no code: blocks with zeros are not exact."""
    return (_signed(-1, 1, wanted, blocks) > 1).view(np.uint8)


def _tq1_0(wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    """Encode TQ1_0. Base-3 digits are no bit fields, so their bytes are written here."""
    codes = _signed(-1, 1, wanted, blocks)
    powers = np.array([81, 27, 9, 3, 1], np.uint16)[:, None]
    for at, count, digits, where in ((0, 32, 5, 0), (160, 16, 5, 32), (240, 4, 4, -1)):
        trits = codes[:, at : at + count * digits].reshape(-1, digits, count)
        packed = (((trits * powers[:digits]).sum(1, np.uint32) * 256 + 242) // 243).astype(np.uint8)
        if where < 0:
            blocks["qh"] = packed
        else:
            blocks["qs"][:, where : where + count] = packed
    return codes


def _offset(top: int, wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    bits, size = wanted.bits, wanted.size
    scales, lows = np.empty(len(blocks), np.float32), np.empty(len(blocks), np.float32)
    codes = np.empty(len(bits), np.int8)
    units.fit_offset(bits, size, top, _room(size), scales, lows, codes)
    blocks["d"], blocks["m"] = scales, lows
    return codes.view(np.uint8).reshape(-1, size)


def _mxfp4(wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    bits, size = wanted.bits, wanted.size
    exponents, doubled = np.empty(len(blocks), np.int32), np.empty(len(bits), np.int8)
    units.fit_powers(bits, size, _room(size), exponents, doubled)
    exponents += 128  # a code of 1 is half of what the block's exponent stands for
    blocks["e"] = np.where((exponents > 0) & (exponents < 255), exponents, 0)
    codes = E2M1_CODES[np.abs(doubled)] | np.where(doubled < 0, np.uint8(8), np.uint8(0))
    chosen: Chosen = codes.reshape(-1, size)
    return chosen


def _signed_sub_blocks(
    low: int, high: int, top: int, bits: Bits, blocks: NDArray[Any]
) -> tuple[NDArray[np.int8], Chosen]:
    """Write the block scales; return the sub-block scales (blocks, 16) and the codes (blocks, 256)."""
    scales, small = np.empty(len(blocks), np.float32), np.empty(16 * len(blocks), np.int8)
    codes = np.empty(len(bits), np.int8)
    units.fit_signed_sub_blocks(bits, low, high, top, _room(256), scales, small, codes)
    blocks["d"] = scales
    return small.reshape(-1, 16), (codes.reshape(-1, 256) - np.int8(low)).view(np.uint8)


def _q3_k(wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    small, codes = _signed_sub_blocks(-4, 3, 31, wanted.bits, blocks)
    put_codes(Q3_K_SCALES, _bytes_of(blocks), (small + np.int8(32)).view(np.uint8))
    return codes


def _q6_k(wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    blocks["scales"], codes = _signed_sub_blocks(-32, 31, 127, wanted.bits, blocks)
    return codes


def _offset_sub_blocks(
    size: int, high: int, top: int, bits: Bits, blocks: NDArray[Any]
) -> tuple[Chosen, Chosen, Chosen]:
    """Write both block scales, which are equal; return sub-block scales and minima (blocks, 256 / size) and the
    codes.
    """
    count = 256 // size
    scales, codes = np.empty(len(blocks), np.float32), np.empty(len(bits), np.int8)
    small, minima = np.empty(count * len(blocks), np.int8), np.empty(count * len(blocks), np.int8)
    units.fit_offset_sub_blocks(bits, size, high, top, _room(256), scales, small, minima, codes)
    blocks["d"] = blocks["dmin"] = scales
    chosen = small.reshape(-1, count), minima.reshape(-1, count), codes.reshape(-1, 256)
    return chosen[0].view(np.uint8), chosen[1].view(np.uint8), chosen[2].view(np.uint8)


def _q2_k(wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    small, minima, codes = _offset_sub_blocks(16, 3, 15, wanted.bits, blocks)
    blocks["scales"] = small | minima << 4
    return codes


def _q4_k(high: int, wanted: Wanted, blocks: NDArray[Any]) -> Chosen:
    small, minima, codes = _offset_sub_blocks(32, high, 63, wanted.bits, blocks)
    blocks["scales"][:, :4] = small[:, :4] | small[:, 4:] >> 4 << 6
    blocks["scales"][:, 4:8] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    blocks["scales"][:, 8:] = small[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return codes


# Functions that fit scales: each writes them into blocks of zeros and returns the codes. The simpler formats go first.
EXACT: dict[str, Callable[[Wanted, NDArray[Any]], Chosen]] = {
    "Q4_0": partial(_signed, -8, 7),
    "Q8_0": partial(_signed, -128, 127),
    "Q4_1": partial(_offset, 15),
    "Q5_0": partial(_signed, -16, 15),
    "Q5_1": partial(_offset, 31),
    "MXFP4": _mxfp4,
    "Q1_0": _q1_0,
    "TQ1_0": _tq1_0,
    "TQ2_0": partial(_signed, -1, 1),
    "Q2_0": partial(_signed, -1, 2),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": partial(_q4_k, 15),
    "Q5_K": partial(_q4_k, 31),
    "Q6_K": _q6_k,
}
