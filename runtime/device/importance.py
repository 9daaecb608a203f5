"""Sums of the inputs of products on a device, for the importance matrix."""

from dataclasses import dataclass, field

import numpy as np
import torch

from ..arrays import Ids
from ..importance import Importance, Sums


@dataclass
class DeviceImportance(Importance):
    """`Importance` whose sums stay on the device until `finish`: float64, or float32 where the device has no float64.

    Products that share an input, such as those of queries, keys and values, share its sums.
    """

    _on_device: dict[tuple[str, int], list[torch.Tensor]] = field(default_factory=dict)
    _counts: dict[str, Ids] = field(default_factory=dict)
    _last: tuple[torch.Tensor, list[torch.Tensor]] | None = None

    def observe_tensor(self, name: str, x: torch.Tensor, expert: int, experts: int) -> None:
        """Add the inputs x (n, width) of the weight `name`, or of one of its experts."""
        if not self.wanted(name):
            return
        if self._last is None or self._last[0] is not x:
            kind = torch.float32 if x.device.type == "mps" else torch.float64
            self._last = x, [x.square().sum(dim=0, dtype=kind), x.sum(dim=0, dtype=kind)]
        counts = self._counts.setdefault(name, np.zeros(experts, np.int64))
        counts[expert] += len(x)
        own = self._on_device.get((name, expert))
        if own is None:
            self._on_device[name, expert] = [each.clone() for each in self._last[1]]
        else:
            for mine, more in zip(own, self._last[1], strict=True):
                mine += more

    def finish(self) -> dict[str, Sums]:
        """Return the sums, moved to the host."""
        self._last = None
        for (name, expert), (squares, inputs) in self._on_device.items():
            if name not in self.sums:
                shape = len(self._counts[name]), len(squares)
                self.sums[name] = Sums(np.zeros(shape), np.zeros(shape), self._counts[name])
            self.sums[name].squares[expert] = squares.cpu().double().numpy()
            self.sums[name].inputs[expert] = inputs.cpu().double().numpy()
        return self.sums
