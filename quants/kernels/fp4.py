"""MXFP4 and NVFP4: values of E2M1, a 4-bit float, under a scale of a byte. They are kept doubled, as integers."""

import numpy as np
from numpy.typing import NDArray

from ..formats.mxfp4 import BLOCK as MX
from ..formats.nvfp4 import BLOCK as NV
from .blocks import Bytes, Floats, Kernels, Memory, codec, field_offsets
from .jit import inlined, kernel
from .lane_memory import load, lookup, store
from .lanes import (
    LANES,
    Lanes,
    absolute,
    every,
    every_int,
    float_bits,
    lane,
    lane_numbers,
    larger,
    largest_lane,
    to_float,
    where,
)

MX_BYTES, MX_VALUES, (_, MX_QS) = MX.itemsize, 32, field_offsets(MX)
NV_BYTES, NV_VALUES, (_, NV_QS) = NV.itemsize, 64, field_offsets(NV)
DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
# Halfway between neighbours: above it the greater magnitude is nearer.
LIMITS = tuple(np.float32(v) for v in (0.5, 1.5, 2.5, 3.5, 5, 7, 10))
TOP_BINADE, LARGEST_CODE = 15 << 3, 0x7E


def _half_powers() -> Floats:
    """Return half of 2 ** (e - 127) for e = 0 … 255; the first two are subnormal."""
    e = np.arange(256, dtype=np.uint32)
    return np.where(e < 2, np.uint32(0x00200000) << e, (e - (e > 0)) << 23).astype(np.uint32).view(np.float32)


def _half_scales() -> Floats:
    """Return half of the value of each E4M3 byte; the sign bit is ignored, 0x7F counts as zero."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, (code & 7).astype(np.float32)
    scale = np.where(exponent == 0, mantissa * 2.0**-10, (8 + mantissa) * 2.0 ** (exponent - 11.0))
    scale[0x7F] = 0
    return scale.astype(np.float32)


def _rounded_up() -> NDArray[np.int32]:
    """Return the bits from which on, in each binade of a float32's exponent field, log2 in float32 is the next whole
    number.

    The logarithm of a number just below a power of two rounds to that power's: the exponent field is one too low then.
    """
    field = np.arange(256, dtype=np.uint32)
    below = np.arange(1 << 11, dtype=np.uint32)[::-1]
    bits = (field[:, None] << 23) | (0x7FFFFF - below)
    with np.errstate(invalid="ignore", divide="ignore"):
        log2 = np.log2(bits.view(np.float32).astype(np.float64)).astype(np.float32)
    reached = (log2 >= field[:, None].astype(np.float32) - 126).sum(1).astype(np.uint32)
    first: NDArray[np.int32] = (((field + 1) << 23) - reached).view(np.int32)
    return first


HALF_POWERS, HALF_SCALES, ROUNDED_UP = _half_powers(), _half_scales(), _rounded_up()


@inlined
def _nearest_codes(x: Lanes, d: np.float32) -> Lanes:
    """Return codes of the nearest of d * DOUBLED, the smaller magnitude where two are as near; never -0. Needs d > 0.

    d has at most four significant bits, so that limits are exact, and so are the differences they stand for.
    """
    size = absolute(x)
    code = where(size > LIMITS[0] * d, every_int(1), 0)
    for k in range(1, 7):
        code = where(size > LIMITS[k] * d, every_int(k + 1), code)
    return where((x < np.float32(0)) & (code > 0), code + 8, code)


@kernel
def _encode_mxfp4(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    for b in range(x.size // MX_VALUES):
        low, high = load(x, MX_VALUES * b), load(x, MX_VALUES * b + LANES)
        top = largest_lane(larger(absolute(low), absolute(high)))
        bits = lane(float_bits(every(top)), 0)
        exponent = bits >> 23
        if bits >= ROUNDED_UP[exponent]:
            exponent += 1
        e = (exponent - 2) & 255 if bits else 0
        d = HALF_POWERS[e]
        raw[MX_BYTES * b] = e
        store(raw, MX_BYTES * b + MX_QS, _nearest_codes(low, d) | (_nearest_codes(high, d) << 4))


@kernel
def _decode_mxfp4(raw: Bytes, values: Floats) -> None:
    for b in range(raw.size // MX_BYTES):
        d, codes = HALF_POWERS[raw[MX_BYTES * b]], load(raw, MX_BYTES * b + MX_QS)
        store(values, MX_VALUES * b, to_float(lookup(DOUBLED, 0, codes & 15)) * d)
        store(values, MX_VALUES * b + LANES, to_float(lookup(DOUBLED, 0, codes >> 4)) * d)


@kernel
def _encode_nvfp4(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    codes = memory.codes
    for g in range(x.size // LANES):
        b, k = g // 4, g % 4
        v = load(x, LANES * g)
        wanted = largest_lane(absolute(v)) / np.float32(6)
        bits = lane(float_bits(every(wanted)), 0)
        exponent = (bits >> 23) - 120
        if exponent > 0:
            code = (bits + 0x00080000 >> 20) - (120 << 3)
            code = code if code < TOP_BINADE else LARGEST_CODE
        else:
            code = min(int(wanted * np.float32(512) + np.float32(0.5)), 7)
        d = HALF_SCALES[code]
        raw[NV_BYTES * b + k] = code
        store(codes, 0, _nearest_codes(v, d) if d > 0 else every_int(0))
        for i in range(8):
            raw[NV_BYTES * b + NV_QS + 8 * k + i] = codes[i] | codes[8 + i] << 4


@kernel
def _decode_nvfp4(raw: Bytes, values: Floats) -> None:
    eight, signed = lane_numbers() & 7, raw.view(np.int8)
    for b in range(raw.size // NV_BYTES):
        for k in range(4):
            byte = lookup(signed, NV_BYTES * b + NV_QS + LANES * (k // 2), eight + 8 * (k % 2))
            codes = where(lane_numbers() < 8, byte, byte >> 4) & 15
            d = HALF_SCALES[raw[NV_BYTES * b + k]]
            store(values, NV_VALUES * b + LANES * k, to_float(lookup(DOUBLED, 0, codes)) * d)


KERNELS = {
    "MXFP4": Kernels(_encode_mxfp4, _encode_mxfp4, _decode_mxfp4),
    "NVFP4": Kernels(_encode_nvfp4, _encode_nvfp4, _decode_nvfp4),
}
encode, decode = codec(KERNELS)
