"""Figures of predictions on a device: sums over the vocabulary, of which only the results come to the host.

Terms are float32, as on the processor, and sums are float64. A device without float64 sums blocks of terms in float32;
the host adds these in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..arrays import Doubles, Floats, Ids
from ..kernels.exponential import LOWEST
from ..kernels.softmax import GAP, SMALL
from .importance import has_float64

AT_ONCE = 1 << 22  # logits of which terms are there at once
BLOCK = 1024  # terms that are summed in float32


@dataclass(frozen=True)
class LogitsOfRows:
    """Logits in a device's memory, float32 (n, vocabulary).

    z: log of each row's sum of e^logits, (n, 1), in the widest type that the device has.
    """

    held: torch.Tensor
    z: torch.Tensor

    def float32(self) -> Floats:
        """Return the logits in the host's memory."""
        logits: Floats = self.held.cpu().numpy()
        return logits

    def divergences(self, other: "LogitsOfRows") -> Doubles:
        """Return KL(these ‖ others), KL(others ‖ these), total variation of each row: float64 (n, 3)."""
        every = self.held, other.held, self.z, other.z
        with torch.inference_mode():
            parts = [_gaps(*(each[rows] for each in every)) for rows in _steps(self.held)]
            sums: Doubles = _on_host(parts).reshape(len(self.held), 3, -1).sum(axis=2)
        sums[:, 2] *= 0.5
        return sums


def rows_of_logits(logits: torch.Tensor, targets: Ids) -> tuple[LogitsOfRows, Doubles]:
    """Return logits (n, vocabulary) with their sums, and figures of each row, float64 (n, 5): log of the sum of
    e^logits, entropy in nats, first largest token, its logit, log-probability of the target.
    """
    wanted = torch.from_numpy(np.ascontiguousarray(targets, np.int64)).to(logits.device)[:, None]
    places = torch.arange(logits.shape[1], dtype=torch.float32, device=logits.device)
    parts, zs = [], []
    for rows in _steps(logits):
        row = logits[rows]
        top = row.amax(dim=1, keepdim=True)
        first = places.expand_as(row).masked_fill(row != top, len(places)).amin(dim=1, keepdim=True)
        x = (row - top).clamp(min=float(LOWEST))
        e = torch.exp(x)
        total, weighted = sums(e), sums(e * x)
        zs.append(top.to(total.dtype) + torch.log(total.sum(dim=1, keepdim=True)))
        parts.append(torch.cat((total, weighted, first, top, row.gather(1, wanted[rows])), dim=1))
    found = _on_host(parts)
    of_sums, (first_token, top_logit, target) = found[:, :-3].reshape(len(found), 2, -1).sum(axis=2), found[:, -3:].T
    with np.errstate(invalid="ignore"):  # logits that are not finite: their figures are not, either
        z = np.log(of_sums[:, 0])
        entropy, log_z = z - of_sums[:, 1] / of_sums[:, 0], z + top_logit
        figures = np.stack((log_z, entropy, first_token, top_logit, target - log_z), axis=1)
    return LogitsOfRows(logits, torch.cat(zs)), figures


def sums(terms: torch.Tensor) -> torch.Tensor:
    """Return sums of rows (n, k): (n, 1) in float64, or of blocks, (n, blocks), where the device has only float32."""
    if has_float64(terms.device):
        return terms.sum(dim=1, keepdim=True, dtype=torch.float64)
    blocks = terms.shape[1] // BLOCK
    whole, rest = terms[:, : blocks * BLOCK], terms[:, blocks * BLOCK :]
    return torch.cat((whole.reshape(len(terms), blocks, BLOCK).sum(dim=2), rest.sum(dim=1, keepdim=True)), dim=1)


def _gaps(base: torch.Tensor, other: torch.Tensor, base_z: torch.Tensor, other_z: torch.Tensor) -> torch.Tensor:
    """Return, side by side, the sums of `runtime.kernels.softmax.short_gaps` over the vocabulary."""
    wide = base_z.dtype
    d = ((base.to(wide) - other.to(wide)) - (base_z - other_z)).float()
    p, q = torch.exp((base.to(wide) - base_z).float()), torch.exp((other.to(wide) - other_z).float())
    y, near = d * d, d.abs() < float(SMALL)
    even = (((float(GAP[0]) * y + float(GAP[2])) * y + float(GAP[4])) * y + float(GAP[6])) * y + float(GAP[8])
    odd = (((float(GAP[1]) * y + float(GAP[3])) * y + float(GAP[5])) * y + float(GAP[7])) * d
    forward = torch.where(near, p * (y * (even - odd)), p * (d - 1) + q)
    backward = torch.where(near, q * (y * (even + odd)), p - q * (d + 1))
    return torch.cat((sums(forward), sums(backward), sums((p - q).abs())), dim=1)


def _steps(logits: torch.Tensor) -> Iterator[slice]:
    """Yield slices of rows of which terms fit in memory."""
    step = max(1, AT_ONCE // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, start + step)


def _on_host(parts: list[torch.Tensor]) -> Doubles:
    found: Doubles = torch.cat(parts).cpu().double().numpy()
    return found
