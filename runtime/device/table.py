"""How operations read values on a device, and the table of functions that compute them."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..graph.operations import Operation, Value
from .context import DeviceContext

OneOperation = TypeVar("OneOperation", bound=Operation)
Compute = Callable[[DeviceContext, Any, "Values"], Any]

COMPUTE: dict[type[Operation], Compute] = {}


class Values:
    """The values of a run that are still read, by number."""

    def __init__(self) -> None:
        self.by_number: dict[int, Any] = {}

    def __call__(self, value: Value) -> Any:
        return self.by_number[value.number]

    def rows(self, value: Value) -> torch.Tensor:
        """Return a value as one row a token."""
        x: torch.Tensor = self.by_number[value.number]
        return x.reshape(len(x), -1)


def computes(
    operation: type[OneOperation],
) -> Callable[[Callable[[DeviceContext, OneOperation, Values], Any]], Compute]:
    """Register the function that computes operations of this type."""

    def entered(function: Callable[[DeviceContext, OneOperation, Values], Any]) -> Compute:
        COMPUTE[operation] = function
        return function

    return entered
