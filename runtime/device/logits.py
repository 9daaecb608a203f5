"""The head on a device: logits, and losses folded tile by tile of the vocabulary."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..arrays import Doubles, Floats, Ids
from ..head import LazyLogits, Output
from .activations import softcap
from .weights import TILE, Weights, product


@dataclass(frozen=True)
class DeviceLogits(LazyLogits):
    """`LazyLogits` whose products are computed on a device. output: the steps after the product."""

    weights: Weights = field(kw_only=True)
    output: Output = field(kw_only=True)

    def float32(self) -> Floats:
        """Return all logits: float32, the last axis of x replaced by the vocabulary."""
        with torch.inference_mode():
            rows = self._rows(self.x)
            logits: Floats = self._finished(product(rows, self._matrix), 0).cpu().numpy()
        return logits.reshape(*self.x.shape[:-1], -1)

    def _losses(self, targets: Ids) -> Doubles:
        with torch.inference_mode():
            rows = self._rows(self.x[..., : targets.shape[-1], :])
            wanted = torch.from_numpy(np.ascontiguousarray(targets, np.int64).reshape(-1)).to(rows.device)
            top = torch.full((len(rows), 1), -torch.inf, device=rows.device)
            total, chosen = torch.zeros_like(top), torch.zeros_like(top)
            matrix = self._matrix
            step = max(1, TILE // max(len(rows), matrix.shape[1]))
            for first in range(0, len(matrix), step):
                logits = self._finished(product(rows, matrix[first : first + step]), first)
                higher = torch.maximum(top, logits.amax(dim=1, keepdim=True))
                total = total * torch.exp(top - higher) + torch.exp(logits - higher).sum(dim=1, keepdim=True)
                top = higher
                place = (wanted - first).clamp(0, logits.shape[1] - 1)[:, None]
                inside = ((wanted >= first) & (wanted < first + logits.shape[1]))[:, None]
                chosen = torch.where(inside, logits.gather(1, place), chosen)
            parts = [each[:, 0].double().numpy() for each in (top.cpu(), total.cpu(), chosen.cpu())]
        losses: Doubles = parts[0] + np.log(parts[1]) - parts[2]
        return losses.reshape(targets.shape)

    @property
    def _matrix(self) -> torch.Tensor:
        return self.weights.matrix(self.weight)

    def _rows(self, x: Floats) -> torch.Tensor:
        rows: Any = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
        return torch.from_numpy(rows).to(self.weights.device)

    def _finished(self, logits: torch.Tensor, first: int) -> torch.Tensor:
        """Return logits of columns from `first` on after bias, scale and cap."""
        output, columns = self.output, slice(first, first + logits.shape[1])
        if output.bias is not None:
            logits = logits + torch.from_numpy(np.array(output.bias[columns])).to(logits.device)
        if output.scale != 1:
            logits = logits * output.scale
        low, high = output.never
        if low < high:
            logits[:, max(0, low - first) : max(0, high - first)] = torch.finfo(torch.float32).min
        return softcap(logits, output.softcap) if output.softcap else logits
