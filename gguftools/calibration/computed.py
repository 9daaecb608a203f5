"""What error feedback computes with matrices, on the processor; `runtime.device.feedback` does the same on a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quants import Format

from .bounds import AT_ONCE

if TYPE_CHECKING:
    from runtime.model import RunningModel
    from runtime.products.block_diagonal import BlockDiagonal

Floats = NDArray[np.float32]
Raw = NDArray[np.uint8]

SPAN = 64  # rows that a thread encodes at once, the same however many threads there are


class Computed(Protocol):
    """Compute with matrices where they are.

    threads: of the processor. calls_at_once: calls of `encode_by_columns` that may run at once.
    """

    @property
    def threads(self) -> int: ...

    @property
    def calls_at_once(self) -> int: ...

    def rows_at_once(self, width: int) -> int:
        """Return how many rows a call of `encode_by_columns` should get."""
        ...

    def moved(self, matrix: "BlockDiagonal") -> "BlockDiagonal":
        """Return a matrix of the processor where it is computed with."""
        ...

    def triangles(self, inputs: "BlockDiagonal", dampings: Sequence[float]) -> list[list[Any]]:
        """Return `quants.feedback.upper_factor` of each block, for each damping."""
        ...

    def encode_by_columns(self, form: Format, factors: Sequence[Any], weights: Floats, rows: Floats) -> Raw:
        """Encode rows with error feedback inside each factor's block of columns."""
        ...

    def correction(self, drift: "BlockDiagonal", factors: Sequence[Any], share: float) -> "BlockDiagonal":
        """Return C: rows W become W + W C, to reproduce on inputs x part of W's output on the original's inputs y.

        V = W + W (y - x) x^T (x x^T)^-1 brings V x nearest to W y; a share of that change is taken. factors: of the
        damped inverse, for blocks of columns (see `triangles`).
        """
        ...


@dataclass(frozen=True)
class Processor:
    """`Computed` on the processor: results are the same to the last bit however many threads there are."""

    threads: int

    @property
    def calls_at_once(self) -> int:
        return self.threads

    def rows_at_once(self, width: int) -> int:
        return SPAN

    def moved(self, matrix: "BlockDiagonal") -> "BlockDiagonal":
        return matrix

    def triangles(self, inputs: "BlockDiagonal", dampings: Sequence[float]) -> list[list[Floats]]:
        from quants.feedback import upper_factor
        from runtime.kernels.blas import one_thread
        from runtime.kernels.threads import parallel, spans

        wanted = [(damping, at) for damping in dampings for at in range(len(inputs.blocks))]
        factors: dict[tuple[float, int], Floats] = {}

        def factor(start: int, stop: int) -> None:
            for damping, at in wanted[start:stop]:
                factors[damping, at] = upper_factor(inputs.blocks[at], damping)

        with one_thread():
            parallel(factor, spans(len(wanted), 1), min(self.threads, AT_ONCE))
        return [[factors[damping, at] for at in range(len(inputs.blocks))] for damping in dampings]

    def encode_by_columns(self, form: Format, factors: Sequence[Floats], weights: Floats, rows: Floats) -> Raw:
        from quants.feedback import encode_with_feedback

        begin, raw = 0, []
        for factor in factors:
            here = slice(begin, begin + len(factor))
            raw.append(encode_with_feedback(form, np.ascontiguousarray(rows[:, here]), factor, weights[here]))
            begin = here.stop
        return np.concatenate(raw, axis=1)

    def correction(self, drift: "BlockDiagonal", factors: Sequence[Floats], share: float) -> "BlockDiagonal":
        from runtime.kernels.threads import parallel, spans
        from runtime.products.block_diagonal import BlockDiagonal

        blocks = []
        for (_, own), factor in zip(drift.columns(), factors, strict=True):
            block = own.astype(np.float32)

            def solve(start: int, stop: int, factor: Floats = factor, block: Floats = block) -> None:
                block[start:stop] = np.float32(share) * (block[start:stop] @ factor.T @ factor)

            parallel(solve, spans(len(block), SPAN), self.threads)
            blocks.append(block)
        return BlockDiagonal(tuple(blocks))


def computed_for(net: "RunningModel") -> Computed:
    """Return what computes with the matrices of a model's layers."""
    if net.device is None:
        return Processor(net.threads)
    from runtime.device.feedback import DeviceFeedback

    return DeviceFeedback(net.device, net.threads)
