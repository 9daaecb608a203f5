"""Error feedback on a device: what grows with the square of a weight's columns is computed there.

The columns of a step are rounded by the kernels of `quants.feedback`, on as many threads of the processor as it has.
Between two steps the device carries their errors to all columns after them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quants import Format, format_named
from quants.feedback import encode_step, step_of

from ..arrays import Floats
from ..kernels.threads import share_out
from ..products.block_diagonal import BlockDiagonal
from .matrices import DeviceMatrix, float_type, on_device, triangle

MIN_ROWS = 64  # that a thread rounds at once: each call costs as much as ten rows, during which no other thread works
CALLS_AT_ONCE = 3
VALUES_AT_ONCE = 1 << 23  # of a weight: while some are rounded, the device carries the errors of others


@dataclass(frozen=True)
class DeviceFeedback:
    """Compute with matrices of a device (see `gguftools.calibration.computed`).

    device: `TorchDevice`. threads: of the processor, which round.
    """

    device: Any
    threads: int

    @property
    def calls_at_once(self) -> int:
        """Return how many calls of `encode_by_columns` may run at once: Metal's queue is for one thread."""
        return 1 if self.device.name == "mps" else CALLS_AT_ONCE

    def rows_at_once(self, width: int) -> int:
        """Return how many rows a call of `encode_by_columns` should get."""
        return max(MIN_ROWS, VALUES_AT_ONCE // width // MIN_ROWS * MIN_ROWS)

    def moved(self, matrix: BlockDiagonal) -> DeviceMatrix:
        """Return a matrix of the processor on the device."""
        kind, device = float_type(self.device.device), self.device.device
        return DeviceMatrix(tuple(torch.from_numpy(block).to(kind).to(device) for block in matrix.blocks))

    def triangles(self, inputs: BlockDiagonal, dampings: Sequence[float]) -> list[list[torch.Tensor]]:
        """Return `quants.feedback.upper_factor` of each block, for each damping: float32, on the device."""
        return [[triangle(block, damping) for block in DeviceMatrix(inputs.blocks).blocks] for damping in dampings]

    def correction(self, drift: BlockDiagonal, factors: Sequence[torch.Tensor], share: float) -> DeviceMatrix:
        """Return share * drift @ U^T U for blocks of columns, float32."""
        with torch.inference_mode():
            pairs = zip(DeviceMatrix(drift.blocks).blocks, factors, strict=True)
            return DeviceMatrix(tuple((block.float() @ factor.T @ factor) * share for block, factor in pairs))

    def encode_by_columns(
        self, form: Format, factors: Sequence[torch.Tensor], weights: Floats, rows: Floats
    ) -> NDArray[np.uint8]:
        """Encode rows (n, width) with error feedback inside each factor's block of columns: uint8 (n, bytes of a row).

        weights: float32 (width,), see `quants.feedback.encode_with_feedback`.
        """
        if form.like:
            other = format_named(form.like)
            return form.encode(other.decode(self.encode_by_columns(other, factors, weights, rows)))
        begin, raw = 0, []
        with torch.inference_mode():
            for factor in factors:
                here = slice(begin, begin + len(factor))
                raw += _encoded(form, on_device(rows[:, here], factor.device), factor, weights[here], self.threads)
                begin = here.stop
        return np.concatenate(raw, axis=1)


def _encoded(
    form: Format, left: torch.Tensor, factor: torch.Tensor, weights: Floats, threads: int
) -> list[NDArray[np.uint8]]:
    """Return the blocks of the columns of each step. left: rows on the device."""
    step, width, raw = step_of(form), len(factor), []
    for first in range(0, width, step):
        last = min(first + step, width)
        own: Any = left[:, : last - first].contiguous().cpu().numpy()
        upper: Any = factor[first:last, first:last].contiguous().cpu().numpy()
        blocks, errors = _rounded(form, own, upper, weights[first:last], threads)
        raw.append(blocks)
        if last < width:
            carried = torch.from_numpy(errors).to(left.device) @ factor[first:last, last:].contiguous()
            left = left[:, last - first :] - carried
    return raw


def _rounded(
    form: Format, own: Floats, upper: Floats, weights: Floats, threads: int
) -> tuple[NDArray[np.uint8], Floats]:
    """Return `encode_step`, with rows shared between threads."""
    blocks = np.empty((len(own), form.row_bytes(own.shape[1])), np.uint8)
    errors = np.empty_like(own)

    def round_rows(start: int, stop: int) -> None:
        blocks[start:stop], errors[start:stop] = encode_step(form, own[start:stop].copy(), upper, weights)

    share_out(round_rows, len(own), MIN_ROWS, threads)
    return blocks, errors
