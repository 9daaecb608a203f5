"""Input statistics of products, collected on the device that runs the layers."""

from dataclasses import dataclass, field
from typing import Any

import torch

from ..hessians import Hessians, Inputs
from .matrices import DeviceProducts, on_device


class DeviceInputs(Inputs):
    """`Inputs` on a device. No operation changes its inputs, so they are kept without a copy."""

    def observe(self, name: str, x: Any, expert: int = 0, experts: int = 1) -> None:
        if experts == 1:
            self.of.setdefault((name, -1), []).append(x)

    def observe_tensor(self, name: str, x: torch.Tensor, expert: int, experts: int) -> None:
        """Keep the inputs x (n, width) of the weight `name`."""
        self.observe(name, x, expert, experts)

    def observe_values(self, name: str, first_row: int, mixed: Any) -> None:
        self.of.setdefault((name, first_row), []).append(mixed)


@dataclass
class DeviceHessians(Hessians):
    """`Hessians` on a device."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def observe(self, name: str, x: Any, expert: int = 0, experts: int = 1) -> None:
        super().observe(name, x if isinstance(x, torch.Tensor) else on_device(x, self.device), expert, experts)

    def observe_tensor(self, name: str, x: torch.Tensor, expert: int, experts: int) -> None:
        """Add the inputs x (n, width) of the weight `name`, or of one of its experts."""
        super().observe(name, x, expert, experts)

    def products(self, width: int) -> DeviceProducts:
        return DeviceProducts.on(self.device, width, self.columns)

    def reference(self) -> DeviceInputs:
        return DeviceInputs()

    def are_same(self, x: Any, y: Any) -> bool:
        """Return whether two weights have the same input, of which each has a view of its own."""
        same: bool = x.shape == y.shape and x.data_ptr() == y.data_ptr()
        return same
