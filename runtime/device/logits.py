"""The head on a device: logits, figures of predictions, and losses folded tile by tile of the vocabulary.

The output matrix is decoded once and stays on the device if there is room, else it is moved tile by tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..arrays import Doubles, Floats, Ids
from ..graph.placement import bytes_on_device
from ..head import LazyLogits, Output, merged
from .activations import softcap
from .figures import LogitsOfRows, rows_of_logits, sums
from .weights import Weights, product

TILE = 1 << 25  # logits, or weights, that are there at once


@dataclass(frozen=True)
class DeviceLogits(LazyLogits):
    """`LazyLogits` whose products are computed on a device, in float32.

    output: the steps after the product. memory: bytes for all weights on the device; None for no limit.
    """

    weights: Weights = field(kw_only=True)
    output: Output = field(kw_only=True)
    memory: int | None = field(kw_only=True, default=None)

    def float32(self) -> Floats:
        """Return all logits: float32, the last axis of x replaced by the vocabulary."""
        with torch.inference_mode():
            logits: Floats = self._logits().cpu().numpy()
        return logits.reshape(*self.x.shape[:-1], -1)

    def rows(self, targets: Ids) -> tuple[LogitsOfRows, Doubles]:
        """Return the logits of x (n, width), which stay on the device, and figures of each row: float64 (n, 5), the
        columns of `runtime.kernels.softmax.row_figures`.
        """
        with torch.inference_mode():
            return rows_of_logits(self._logits(), targets)

    def _logits(self) -> torch.Tensor:
        rows = self._rows(self.x)
        matrix = self._kept()
        if matrix is not None and matrix.dtype == torch.float32:
            return self._finished(product(rows, matrix), 0)
        logits = torch.empty((len(rows), self.weight.rows), device=rows.device)
        for first, tile in self._tiles(self.weight.width):
            logits[:, first : first + len(tile)] = self._finished(product(rows, tile), first)
        return logits

    def _losses(self, targets: Ids) -> Doubles:
        parts = []
        with torch.inference_mode():
            rows = self._rows(self.x[..., : targets.shape[-1], :])
            wanted = torch.from_numpy(targets.reshape(-1, 1).astype(np.int64)).to(rows.device)
            for first, tile in self._tiles(max(len(rows), self.weight.width)):
                logits, place = self._finished(product(rows, tile), first), wanted - first
                top = logits.amax(dim=1, keepdim=True)
                target = logits.gather(1, place.clamp(0, logits.shape[1] - 1))
                target = target.masked_fill((place < 0) | (place >= logits.shape[1]), 0.0)
                total = sums(torch.exp(logits - top))
                parts.append(torch.cat((top.to(total.dtype), target.to(total.dtype), total), dim=1))
            found = torch.cat(parts, dim=1).cpu().double().numpy()
        tiles = np.split(found, np.cumsum([part.shape[1] for part in parts])[:-1], axis=1)
        states = [np.stack((tile[:, 0], tile[:, 2:].sum(axis=1), tile[:, 1]), axis=1) for tile in tiles]
        with np.errstate(invalid="ignore"):  # losses of logits that are not finite are not, either
            top_logit, summed, of_target = merged(states).T
            losses: Doubles = top_logit + np.log(summed) - of_target
        return losses.reshape(targets.shape)

    def _tiles(self, per_row: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield rows of the output matrix, and the number of the first one. per_row: numbers that a row of it makes."""
        matrix, step = self._kept(), max(1, TILE // per_row)
        for first in range(0, self.weight.rows, step):
            stop = min(first + step, self.weight.rows)
            yield first, self.weights.some_rows(self.weight, first, stop) if matrix is None else matrix[first:stop]

    def _kept(self) -> torch.Tensor | None:
        """Return the output matrix, which stays on the device; None if there is no room for it."""
        fits = self.memory is None or bytes_on_device(self.weight) <= self.memory
        return self.weights.matrix(self.weight) if fits else None

    def _rows(self, x: Floats) -> torch.Tensor:
        rows: Any = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
        return torch.from_numpy(rows if rows.flags.writeable else rows.copy()).to(self.weights.device)

    def _finished(self, logits: torch.Tensor, first: int) -> torch.Tensor:
        """Return logits of columns from `first` on after bias, scale and cap; they may change in place."""
        output, columns = self.output, slice(first, first + logits.shape[1])
        if output.bias is not None:
            logits += torch.from_numpy(np.array(output.bias[columns])).to(logits.device)
        if output.scale != 1:
            logits *= output.scale
        low, high = output.never
        if low < high:
            logits[:, max(0, low - first) : max(0, high - first)] = torch.finfo(torch.float32).min
        return softcap(logits, output.softcap) if output.softcap else logits
