"""Sums of x x^T, their means and triangles on a device, for weights that are encoded with error feedback.

Sums and triangles are float64, where the device has it; where it has not, sums are float32, and triangles are found on
the processor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quants.feedback import damping_of, upper_factor

from ..arrays import Doubles, Floats
from ..hessians import Products
from ..products.block_diagonal import BlockDiagonal, column_blocks
from .importance import has_float64

INPUTS_AT_ONCE = 1 << 15  # whose products are summed in float32


def float_type(device: torch.device) -> torch.dtype:
    """Return the type of sums on a device: float64, or float32 where it has no float64."""
    return torch.float64 if has_float64(device) else torch.float32


@dataclass(frozen=True)
class DeviceMatrix(BlockDiagonal):
    """`BlockDiagonal` whose blocks are tensors of a device. What it returns besides matrices is on the host."""

    blocks: tuple[Any, ...]

    @property
    def device(self) -> torch.device:
        device: torch.device = self.blocks[0].device
        return device

    def single(self) -> "DeviceMatrix":
        return DeviceMatrix(tuple(block.float() for block in self.blocks))

    def diagonal(self) -> Floats:
        parts: list[Floats] = [block.diagonal().cpu().numpy() for block in self.blocks]
        return np.concatenate(parts)

    def along(self, left: Floats, right: Floats) -> float:
        total = 0.0
        with torch.inference_mode():
            for here, block in self.single().columns():
                x, y = (on_device(each[:, here], self.device) for each in (left, right))
                total += float((x @ block * y).sum(dim=1).cpu().double().sum())
        return total

    def times(self, rows: Floats) -> Floats:
        with torch.inference_mode():
            parts = [on_device(rows[:, here], self.device) @ block for here, block in self.single().columns()]
            product: Floats = torch.cat(parts, dim=1).cpu().numpy()
        return product


def on_device(values: Floats | Doubles, device: torch.device) -> torch.Tensor:
    """Return an array of the host on a device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


@dataclass
class DeviceProducts(Products):
    """`Products` on a device: all of each block is summed."""

    uppers: tuple[Any, ...]
    drifts: tuple[Any, ...] = ()

    @classmethod
    def on(cls, device: torch.device, width: int, columns: int) -> "DeviceProducts":
        """Return an empty sum; blocks have at most `columns` columns."""
        sizes = [here.stop - here.start for here in column_blocks(width, columns)]
        return cls(tuple(torch.zeros((size, size), dtype=float_type(device), device=device) for size in sizes))

    def add(self, x: Any, threads: int) -> None:
        _add(self.uppers, x, x)
        self.count += len(x)

    def compare(self, x: Any, y: Any, threads: int) -> None:
        self.drifts = self.drifts or tuple(map(torch.zeros_like, self.uppers))
        _add(self.drifts, y - x, x)
        self.compared += len(x)

    def drift(self) -> DeviceMatrix | None:
        if not self.drifts or self.compared != self.count:
            return None
        return DeviceMatrix(tuple((drift / self.count).float() for drift in self.drifts))

    def matrix(self) -> DeviceMatrix:
        return DeviceMatrix(tuple(upper / max(1, self.count) for upper in self.uppers))


def _add(sums: Iterable[torch.Tensor], left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left^T right, (n, width) both, to sums of blocks of columns."""
    begin = 0
    for block in sums:
        here = slice(begin, begin + len(block))
        for some in range(0, len(left), INPUTS_AT_ONCE):
            rows = slice(some, some + INPUTS_AT_ONCE)
            block += left[rows, here].T @ right[rows, here]
        begin = here.stop


def triangle(block: torch.Tensor, damping: float) -> torch.Tensor:
    """Return `quants.feedback.upper_factor` of a block: float32, on the device.

    One that the device does not find is found on the processor, by the same rule.
    """
    if block.dtype == torch.float64:
        try:
            with torch.inference_mode():
                upper = _found(block, damping)
        except RuntimeError:  # no memory, or no solver
            upper = None
        if upper is not None:
            return upper
    return on_device(upper_factor(block.cpu().numpy(), damping), block.device)


def _found(block: torch.Tensor, damping: float) -> torch.Tensor | None:
    """Return the triangle of one block; None if the matrix is not positive definite."""
    added = damping_of(block.diagonal().cpu().numpy(), damping)
    work = block.flip(0, 1)  # reversed, as there
    work.diagonal().add_(on_device(added[::-1], block.device))
    lower, failed = torch.linalg.cholesky_ex(work)
    del work
    if int(failed):
        return None
    unit = torch.eye(len(block), dtype=block.dtype, device=block.device)
    inverse = torch.linalg.solve_triangular(lower, unit, upper=False)
    upper = inverse.flip(0, 1).float().contiguous()
    return upper if bool(torch.isfinite(upper).all()) else None
