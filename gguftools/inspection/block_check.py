"""Whether every stored block means numbers: a look at scales and exponents alone, much faster than decoding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from quants import Format, Tensor

from ..writing.finiteness import not_finite
from ..writing.row_blocks import Progress, over_rows


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
    for tensor, _, bad in over_rows(tensors, _look, threads=threads, progress=progress):
        if bad is not None:
            first = found.get(tensor.name)
            found[tensor.name] = bad if first is None else replace(first, count=first.count + bad.count)
    return list(found.values())


def _look(tensor: Tensor, start: int, stop: int) -> BadBlocks | None:
    raw = np.ascontiguousarray(tensor.raw(start, stop))
    wrong = not_finite(tensor.format, raw)
    if wrong is None or not wrong.any():
        return None
    row, block = divmod(int(np.argmax(wrong)), wrong.size // len(raw))
    what = "a scale is NaN or infinite in block" if tensor.format.is_quantized else "NaN or infinity in column"
    return BadBlocks(tensor.name, int(np.count_nonzero(wrong)), start + row, block, what)
