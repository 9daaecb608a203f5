"""Whether every stored block means numbers: a look at scales and exponents alone, much faster than decoding.

A block format multiplies small integers with its scales, so its values are finite if these are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor

from ..writing.row_blocks import Progress, over_rows

HALF_EXPONENT = np.uint16(0x7C00)


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
    return not form.is_quantized or form.has_codec


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
    if form.infinity is not None:
        bits = raw.reshape(-1).view(f"<u{form.block_bytes}")
        return np.asarray((bits & form.infinity) == form.infinity)
    blocks = raw.reshape(-1).view(form.block)
    if form.bad_blocks:
        return form.bad_blocks(blocks)
    halves = [blocks[name].view("<u2") for name, (dtype, *_) in (form.block.fields or {}).items() if dtype == "<f2"]
    wrong = [(bits & HALF_EXPONENT) == HALF_EXPONENT for bits in halves]
    return np.logical_or.reduce(wrong) if wrong else None
