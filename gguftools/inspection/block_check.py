"""Whether every stored block means numbers: a look at scales and exponents alone, much faster than decoding.

A block format multiplies small integers with its scales, so its values are finite if these are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor
from quants.format import has_codec

from ..writing.pipeline import EXPONENTS
from ..writing.row_blocks import Progress, over_rows

HALF_EXPONENT = np.uint16(0x7C00)
NOT_A_NUMBER_E8M0 = 255


@dataclass(frozen=True)
class BadBlocks:
    """Of one tensor: how many blocks (values, where a value has bytes of its own) are not finite, and the first."""

    tensor: str
    count: int
    row: int
    block: int
    what: str

    @property
    def message(self) -> str:
        more = f", the first of {self.count:,}" if self.count > 1 else ""
        return f"{self.what} {self.block} of row {self.row}{more}"


def can_check(form: Format) -> bool:
    return form.name in EXPONENTS or not form.is_quantized or has_codec(form.name)


def find_bad_blocks(
    tensors: Iterable[Tensor], *, threads: int | None = None, progress: Progress | None = None
) -> list[BadBlocks]:
    """One entry for each tensor with a NaN or infinity in a scale or value; formats we don't know are left out."""
    tensors = [tensor for tensor in tensors if can_check(tensor.format)]
    found: dict[str, BadBlocks] = {}
    for tensor, start, bad in over_rows(tensors, _look, threads=threads, progress=progress):
        if bad is None:
            continue
        count, row, block, what = bad
        before = found.get(tensor.name)
        found[tensor.name] = (
            BadBlocks(tensor.name, count, start + row, block, what)
            if before is None
            else BadBlocks(tensor.name, before.count + count, before.row, before.block, before.what)
        )
    return list(found.values())


def _look(tensor: Tensor, start: int, stop: int) -> tuple[int, int, int, str] | None:
    """Number of bad blocks, row and block of the first, what it has."""
    raw = np.ascontiguousarray(tensor.raw(start, stop))
    wrong = not_finite(tensor.format, raw)
    if wrong is None or not wrong.any():
        return None
    row, block = divmod(int(np.argmax(wrong)), wrong.size // len(raw))
    what = "a scale is NaN or infinite in block" if tensor.format.is_quantized else "NaN or infinity in column"
    return int(np.count_nonzero(wrong)), row, block, what


def not_finite(form: Format, raw: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """For each block of rows (uint8, contiguous) whether a scale is NaN or infinite; None where none can be."""
    if form.name in EXPONENTS:
        dtype, exponent = EXPONENTS[form.name]
        bits = raw.reshape(-1).view(dtype)
        mask = bits.dtype.type(exponent)
        return np.asarray((bits & mask) == mask)
    if not form.is_quantized:
        return None
    blocks = raw.reshape(-1).view(form.codec.BLOCK)
    if form.name == "MXFP4":
        return np.asarray(blocks["e"] == NOT_A_NUMBER_E8M0)
    if form.name == "IQ1_M":
        return _is_special(_spread_half(blocks["scales"]))
    halves = [name for name, (kind, *_) in blocks.dtype.fields.items() if kind == np.dtype("<f2")]
    wrong = [_is_special(blocks[name].view("<u2")) for name in halves]
    return np.logical_or.reduce(wrong) if wrong else None


def _is_special(bits: NDArray[np.uint16]) -> NDArray[np.bool_]:
    return np.asarray((bits & HALF_EXPONENT) == HALF_EXPONENT)


def _spread_half(scales: NDArray[Any]) -> NDArray[np.uint16]:
    """The half-precision number whose four nibbles are the highest of four words."""
    nibbles = (scales >> 12).astype(np.uint16) << np.arange(0, 16, 4, dtype=np.uint16)
    return np.asarray(np.bitwise_or.reduce(nibbles, axis=1), np.uint16)
