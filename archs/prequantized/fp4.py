"""Floats of 4 bits (E2M1) in pairs, the even column in the lower half of a byte: MXFP4 and NVFP4.

MXFP4: every 32 under a power of two. GGUF has the same, weights i and i + 16 in byte i of a block: nothing is lost.
    GPT-OSS              NAME_blocks uint8 (…, rows, blocks of a row, 16), NAME_scales uint8 (…, rows, blocks of a row)
    compressed-tensors   uint8 (rows, width / 2) and (rows, width / 32), the same bytes

NVFP4: uint8 (rows, width / 2), every 16 under a scale F8_E4M3 (rows, width / 16), all under one float32:
weight = E2M1[code] * (scale * factor). GGUF's NVFP4 blocks have no place for the factor. Where it is a power of two
that all scales take in without loss, the weight keeps its bits and is NVFP4; elsewhere it is decoded.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named
from quants.errors import ModelError

from ..spec import Floats, Tensors
from .tensor_groups import Settings, Unpacked, decoded

BLOCKS, SCALES = "_blocks", "_scales"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
PAIRS = np.stack((np.tile(E2M1, 16), np.repeat(E2M1, 16)), -1).view("<f8").reshape(-1)  # two float32 for each byte
CODES = np.arange(127, dtype=np.uint8)  # E4M3 without sign and NaN, ascending


def gpt_oss(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return every pair NAME_blocks, NAME_scales as one MXFP4 tensor NAME, with weight rows in ggml's order.

    Raises ModelError for blocks whose scales are missing or of another shape.
    """
    result = dict(tensors)
    for name, blocks in tensors.items():
        if not name.endswith(BLOCKS) or blocks.row_bytes != 16:
            continue
        whole = name.removesuffix(BLOCKS)
        scales = tensors.get(whole + SCALES)
        if scales is None or scales.shape != blocks.shape[:-1]:
            problem = "there are none" if scales is None else f"they have shape {list(scales.shape)}"
            raise ModelError(f"{name!r} needs scales of shape {list(blocks.shape[:-1])}; {problem}")
        result[whole] = mxfp4(whole, blocks, scales)
        del result[name], result[whole + SCALES]
    return Unpacked(result)


def mxfp4(name: str, packed: Tensor, scales: Tensor) -> Tensor:
    """Return bytes and exponents of a weight as one MXFP4 tensor. Raises ModelError for shapes that don't fit."""
    *outer, per_row = scales.shape
    if packed.nbytes != scales.size * 16 or packed.rows % max(1, scales.rows):
        shapes = f"shape {list(packed.shape)} and scales {list(scales.shape)}"
        raise ModelError(f"{packed.where} has {shapes}; a scale for each 32 values was expected")
    each = packed.rows // max(1, scales.rows)  # rows of `packed` that make a row of weights

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        scale = scales.raw(start, stop).reshape(-1, 1)
        blocks = np.hstack((scale, _halves(packed.raw(start * each, stop * each), 32)))
        return blocks.reshape(stop - start, per_row * 17)

    return replace(packed, name=name, shape=(*outer, per_row * 32), format=format_named("MXFP4"), read=read)


def _halves(pairs: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
    """Return bytes in ggml's order, (groups, group / 2): in each group, value i of the first half with value i of the
    second.
    """
    values = np.stack((pairs & 15, pairs >> 4), -1).reshape(-1, group)
    halves: NDArray[np.uint8] = values[:, : group // 2] | values[:, group // 2 :] << 4
    return halves


def nvfp4(name: str, packed: Tensor, scale: Tensor, factor: np.float32, apply: np.ufunc = np.multiply) -> Tensor:
    """Return the weight (rows, width), as ggml's NVFP4 blocks or float32.

    factor: multiplies all scales, or divides them if `apply` is np.divide. Raises ModelError for shapes that don't fit.
    """
    *outer, half = packed.shape
    width = 2 * half
    if packed.format.name != "U8" or scale.shape != (*outer, width // 16) or width % 16:
        problem = f"{packed.where} is {packed.format.name} {list(packed.shape)} with scales {list(scale.shape)}"
        raise ModelError(f"{problem}; bytes of two values and a scale for each 16 were expected")
    codes = _taken_in(scale, factor, apply) if width % 64 == 0 and scale.format.name == "F8_E4M3" else None

    def read(start: int, stop: int) -> Floats:
        values = np.take(PAIRS, packed.raw(start, stop)).view("<f4").reshape(stop - start, width // 16, 16)
        values *= apply(scale.float32(start, stop), factor)[:, :, None]
        return values

    def blocks(start: int, stop: int) -> NDArray[np.uint8]:
        scales = codes[scale.raw(start, stop)].reshape(-1, 4)  # type: ignore[index]
        both = np.hstack((scales, _halves(packed.raw(start, stop), 16).reshape(-1, 32)))
        return both.reshape(stop - start, width // 64 * 36)

    if codes is None:
        return decoded(name, (*outer, width), read, packed.origin)
    return replace(packed, name=name, shape=(*outer, width), format=format_named("NVFP4"), read=blocks)


def _taken_in(scale: Tensor, factor: np.float32, apply: np.ufunc) -> NDArray[np.uint8] | None:
    """Return for each E4M3 byte the byte of its product with the factor; None if a stored scale has none."""
    if not math.isfinite(factor) or math.frexp(factor)[0] != 0.5:  # so that scales are read only for powers of two
        return None
    values = scale.format.decode(CODES[None])[0]
    wanted = apply(values, factor)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    exact = np.zeros(256, bool)
    exact[CODES] = values[place] == wanted
    stored = np.flatnonzero(np.bincount(np.ascontiguousarray(scale.raw()).reshape(-1), minlength=256))
    return np.resize(place, 256).astype(np.uint8) if exact[stored].all() else None
