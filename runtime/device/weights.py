"""Weights of a model on a device.

F16 and BF16 stay as they are stored, everything else is decoded to float32 by the codecs of `quants`: products are
float32 in any case.
"""

from collections.abc import Iterable

import numpy as np
import torch

from quants import Tensor

from ..layer import Layer

TILE = 1 << 27  # numbers of a weight that are widened to float32 at a time
STORED_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16}


def on_host(tensor: Tensor, start: int = 0, stop: int | None = None) -> torch.Tensor:
    """Return rows of a weight in the processor's memory, in its shape: float32, or F16 and BF16 as stored."""
    stop = tensor.rows if stop is None else stop
    shape = tensor.shape if (start, stop) == (0, tensor.rows) else (stop - start, tensor.width)
    stored_type = STORED_TYPES.get(tensor.format.name)
    if stored_type is None:
        values = np.ascontiguousarray(tensor.float32(start, stop))
        return torch.from_numpy(values if values.flags.writeable else values.copy()).reshape(shape)
    words = np.frombuffer(bytearray(tensor.raw(start, stop)), np.int16)
    return torch.from_numpy(words).view(stored_type).reshape(shape)


class Weights:
    """Weights by tensor, moved to the device when first read and kept until they are dropped.

    device: torch's. streams_experts: matrices of stacked weights are moved one by one, where they are used. nbytes: of
    what is kept. uses_tf32: for plain products with them, in passes that may be inexact.
    """

    def __init__(self, device: torch.device, streams_experts: bool = False) -> None:
        self.device, self.streams_experts = device, streams_experts
        self.nbytes, self.uses_tf32 = 0, False
        self._kept: dict[int, tuple[Tensor, torch.Tensor]] = {}
        self._small: dict[tuple[int, str], torch.Tensor] = {}

    def matrix(self, tensor: Tensor) -> torch.Tensor:
        """Return a weight in its shape: float32, float16 or bfloat16."""
        if id(tensor) not in self._kept:
            self.put(tensor, on_host(tensor))
        return self._kept[id(tensor)][1]

    def put(self, tensor: Tensor, values: torch.Tensor) -> None:
        """Move the values of a weight, which `on_host` returned, to the device."""
        moved = values.to(self.device, non_blocking=True)
        self._kept[id(tensor)] = tensor, moved
        self.nbytes += moved.nbytes

    def has(self, tensor: Tensor) -> bool:
        return id(tensor) in self._kept

    def drop(self, tensors: Iterable[Tensor]) -> None:
        """Release weights."""
        for tensor in tensors:
            kept = self._kept.pop(id(tensor), None)
            if kept is not None:
                self.nbytes -= kept[1].nbytes

    def array(self, layer: Layer, role: str) -> torch.Tensor | None:
        """Return a small tensor (norm, bias) in float32; None if the layer has none."""
        return self.need_array(layer, role) if role in layer else None

    def need_array(self, layer: Layer, role: str) -> torch.Tensor:
        """Return `array` of a required tensor. Raises ModelError if it is missing."""
        key = id(layer), role
        if key not in self._small:
            self._small[key] = torch.from_numpy(np.array(layer.need_array(role))).to(self.device)
        return self._small[key]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x (n, width) @ weight (rows, width).T in the type of x, float32: (n, rows)."""
    if weight.dtype == x.dtype:
        return x @ weight.T
    rows = max(1, TILE // weight.shape[1])
    if len(weight) <= rows:
        return x @ weight.to(x.dtype).T
    return torch.cat([x @ weight[at : at + rows].to(x.dtype).T for at in range(0, len(weight), rows)], dim=1)
