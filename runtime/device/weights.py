"""Weights of a model on a device.

F16 and BF16 stay as they are stored, everything else is decoded to float32 by the codecs of `quants`: products are
float32 in any case.
"""

from collections.abc import Iterable

import torch

from quants import Tensor

from ..graph.placement import bytes_on_device
from ..layer import Layer
from .transfers import WeightCopies

TILE = 1 << 27  # numbers of a weight that are widened to float32 at a time


class Weights:
    """Weights by tensor, moved to the device when first read and kept until they are dropped.

    device: torch's. limit: bytes that weights read at need may fill; those kept before make room. None for no limit.
    nbytes: of what is kept; peak: at most, with what was on its way. uses_tf32: for plain products with them, in passes
    that may be inexact.
    """

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.device, self.limit, self.copies = device, limit, WeightCopies(device)
        self.nbytes = self.peak = self._coming = 0
        self.uses_tf32 = False
        self._kept: dict[int, tuple[Tensor, torch.Tensor]] = {}
        self._arrays: dict[int, tuple[Tensor, torch.Tensor]] = {}  # small ones, in float32
        self._experts: dict[tuple[int, int], torch.Tensor] = {}

    def matrix(self, tensor: Tensor) -> torch.Tensor:
        """Return a weight in its shape: float32, float16 or bfloat16."""
        if id(tensor) not in self._kept:
            self._make_room(bytes_on_device(tensor))
            self.put(tensor, self.copies.load(tensor))
        return self._kept[id(tensor)][1]

    def expert(self, tensor: Tensor, number: int) -> torch.Tensor:
        """Return one matrix of a stacked weight."""
        alone = self._experts.get((id(tensor), number))
        return self.matrix(tensor)[number] if alone is None else alone

    def some_rows(self, tensor: Tensor, start: int, stop: int) -> torch.Tensor:
        """Return rows of a weight, which are not kept."""
        rows = self.copies.load(tensor, slice(start, stop))
        self.copies.side.hand_over(rows)
        return rows

    def put(self, tensor: Tensor, values: torch.Tensor) -> None:
        """Keep a weight on the device, as `WeightCopies.load` returned it."""
        self.copies.side.hand_over(values)
        small = len(tensor.shape) == 1 and values.dtype == torch.float32
        self._keep(self._arrays if small else self._kept, tensor, values)

    def put_expert(self, tensor: Tensor, number: int, values: torch.Tensor) -> None:
        """Keep one matrix of a stacked weight."""
        self.copies.side.hand_over(values)
        self._experts[id(tensor), number] = values
        self._count(values.nbytes)

    def expect(self, size: int) -> None:
        """Count bytes that are on their way to the device; a negative size when they are there."""
        self._coming += size
        self._count(0)

    def has(self, tensor: Tensor) -> bool:
        return id(tensor) in self._kept or id(tensor) in self._arrays

    def drop(self, tensors: Iterable[Tensor]) -> None:
        """Release weights."""
        for tensor in tensors:
            for kept in (self._kept, self._arrays):
                if id(tensor) in kept:
                    self._count(-kept.pop(id(tensor))[1].nbytes)

    def drop_expert(self, tensor: Tensor, number: int) -> None:
        """Release one matrix of a stacked weight."""
        self._count(-self._experts.pop((id(tensor), number)).nbytes)

    def kept(self) -> list[Tensor]:
        """Return the weights that are kept."""
        return [tensor for kept in (self._kept, self._arrays) for tensor, _ in kept.values()]

    def keep_only(self, tensors: Iterable[Tensor]) -> None:
        """Release all weights but these."""
        wanted = {id(each) for each in tensors}
        self.drop([each for each in self.kept() if id(each) not in wanted])
        self._count(-sum(values.nbytes for values in self._experts.values()))
        self._experts.clear()

    def array(self, layer: Layer, role: str) -> torch.Tensor | None:
        """Return a small tensor (norm, bias) in float32; None if the layer has none."""
        return self.need_array(layer, role) if role in layer else None

    def need_array(self, layer: Layer, role: str) -> torch.Tensor:
        """Return `array` of a required tensor. Raises ModelError if it is missing."""
        tensor = layer.need(role)
        if id(tensor) in self._arrays:
            return self._arrays[id(tensor)][1]
        whole = self._kept.get(id(tensor))
        if whole is not None and whole[1].dtype == torch.float32:
            return whole[1]
        values = self.copies.load(tensor, as_float32=True) if whole is None else whole[1].float()
        self.copies.side.hand_over(values)
        self._keep(self._arrays, tensor, values)
        return values

    def _keep(self, kept: dict[int, tuple[Tensor, torch.Tensor]], tensor: Tensor, values: torch.Tensor) -> None:
        kept[id(tensor)] = tensor, values
        self._count(values.nbytes)

    def _count(self, more: int) -> None:
        self.nbytes += more
        self.peak = max(self.peak, self.nbytes + self._coming)

    def _make_room(self, size: int) -> None:
        if self.limit is not None and self.nbytes + size > self.limit:
            self.drop([tensor for tensor, _ in self._kept.values()])


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x (n, width) @ weight (rows, width).T in the type of x, float32: (n, rows)."""
    if weight.dtype == x.dtype:
        return x @ weight.T
    rows = max(1, TILE // weight.shape[1])
    if len(weight) <= rows:
        return x @ weight.to(x.dtype).T
    return torch.cat([x @ weight[at : at + rows].to(x.dtype).T for at in range(0, len(weight), rows)], dim=1)
