"""NVFP4 as checkpoints store it: E2M1 in pairs, every 16 under a scale of E4M3, all under one float32.

    bytes   uint8 (rows, width / 2)      the lower half of a byte is the even column
    scale   F8_E4M3 (rows, width / 16)

    weight = E2M1[code] * (scale * factor)

GGUF's NVFP4 blocks have no place for the factor. Where it is a power of two that all scales take in without loss, the
weight keeps its bits and is NVFP4; elsewhere it is decoded.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named
from quants.errors import ModelError

from .parts import Floats, decoded

GROUP, BLOCK = 16, 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
PAIRS = np.stack((np.tile(E2M1, 16), np.repeat(E2M1, 16)), -1).view("<f8").reshape(-1)  # of each byte, 2 x float32
CODES = np.arange(127, dtype=np.uint8)  # E4M3 without sign and NaN, ascending


def nvfp4(name: str, packed: Tensor, scale: Tensor, factor: np.float32, apply: np.ufunc = np.multiply) -> Tensor:
    """The weight (rows, width), as ggml's NVFP4 blocks or float32.

    factor: what all scales are multiplied with, or divided by where `apply` is np.divide.
    Raises ModelError for shapes that don't fit.
    """
    *outer, half = packed.shape
    width = 2 * half
    if packed.format.name != "U8" or scale.shape != (*outer, width // GROUP) or width % GROUP:
        raise ModelError(
            f"{packed.origin or packed.name} is {packed.format.name} {list(packed.shape)} with scales "
            f"{list(scale.shape)}; bytes of two values and a scale for each {GROUP} were expected"
        )
    codes = taken_in(scale, factor, apply) if width % BLOCK == 0 and scale.format.name == "F8_E4M3" else None
    if codes is not None:
        return as_blocks(name, packed, scale, codes)

    def read(start: int, stop: int) -> Floats:
        values = np.take(PAIRS, packed.raw(start, stop)).view("<f4").reshape(stop - start, width // GROUP, GROUP)
        values *= apply(scale.float32(start, stop), factor)[:, :, None]
        return values

    return decoded(name, (*outer, width), read, packed.origin)


def taken_in(scale: Tensor, factor: np.float32, apply: np.ufunc) -> NDArray[np.uint8] | None:
    """For each E4M3 byte the one that has taken in the factor; None where a stored scale has none."""
    if not math.isfinite(factor) or math.frexp(factor)[0] != 0.5:  # so that scales are read for powers of two alone
        return None
    values = scale.format.decode(CODES[None])[0]
    wanted = apply(values, factor)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    exact = np.zeros(256, bool)
    exact[CODES] = values[place] == wanted
    stored = np.flatnonzero(np.bincount(np.ascontiguousarray(scale.raw()).reshape(-1), minlength=256))
    return np.resize(place, 256).astype(np.uint8) if exact[stored].all() else None


def as_blocks(name: str, packed: Tensor, scale: Tensor, codes: NDArray[np.uint8]) -> Tensor:
    """The same bits in ggml's order: in each group of 16, byte i holds values i and i + 8."""
    *outer, half = packed.shape

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        pairs = packed.raw(start, stop).reshape(-1, GROUP // 2)
        values = np.stack((pairs & 15, pairs >> 4), -1).reshape(-1, GROUP)
        blocks = np.empty((len(pairs) * GROUP // BLOCK, 4 + BLOCK // 2), np.uint8)
        blocks[:, :4] = codes[scale.raw(start, stop)].reshape(-1, 4)
        blocks[:, 4:] = (values[:, :8] | values[:, 8:] << 4).reshape(-1, BLOCK // 2)
        return blocks.reshape(stop - start, half * 2 // BLOCK * (4 + BLOCK // 2))

    form = format_named("NVFP4")
    return replace(packed, name=name, shape=(*outer, 2 * half), format=form, read=read)
