"""The executor for devices: operations of a graph over all tokens at once, computed by torch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..arrays import Floats
from ..graph import operations as op
from ..graph.builder import Graph
from ..layer import ForwardContext
from . import (
    attention_operations,
    encoder_operations,
    indexer_operations,
    plain_operations,
    recurrent_operations,
    stream_operations,
)
from .context import DeviceContext
from .table import COMPUTE, Values
from .weights import Weights

Hook = Callable[[Floats], None]
IN_MODULES = (
    attention_operations,
    encoder_operations,
    indexer_operations,
    plain_operations,
    recurrent_operations,
    stream_operations,
)


class Run:
    """A graph over one batch of texts, computed node by node; it can stop after any of them and go on later.

    next: the number of the next node.
    """

    def __init__(self, graph: Graph, context: DeviceContext, x: torch.Tensor) -> None:
        self.graph, self.context, self.next = graph, context, 0
        self._x, self._values = x, Values()
        self._unchecked: tuple[str, torch.Tensor] | None = None  # a layer, and whether its output is finite

    def advance(self, stop: int, hooks: Mapping[int, Hook] | None = None) -> None:
        """Compute the nodes up to number `stop`.

        hooks: by a value's number, called with it on the host; it may be changed in place. They get neither cached keys
        nor what was not computed. Raises ModelError if a layer's output is not finite, with the layer's name.
        """
        graph, context, values = self.graph, self.context, self._values
        for number in range(self.next, stop):
            node = graph.nodes[number]
            if isinstance(node.operation, op.Input):
                value = self._x
            elif node.value.rows == "some" and any(values(each) is None for each in node.operation.inputs()):
                value = None
            else:
                with context.forward.timed(node.category):
                    value = COMPUTE[type(node.operation)](context, node.operation, values)
            if number in graph.checked:
                self._check_finite(graph.checked[number], value)
            if hooks and number in hooks and isinstance(value, torch.Tensor):
                value = _hooked(context, hooks[number], value)
            values.by_number[number] = value
            for forgotten in graph.memory.forgotten[number]:
                del values.by_number[forgotten]
        self.next = stop
        if stop == len(graph.nodes):
            self._check_finite("", None)

    def _check_finite(self, where: str, x: torch.Tensor | None) -> None:
        """Raise ModelError if the layer before this one gave values that are not finite.

        The device is asked while it computes the next layer, so that it does not wait.
        """
        asked, self._unchecked = self._unchecked, None if x is None else (where, torch.isfinite(x).all())
        if asked is not None and not bool(asked[1]):
            self.context.forward.finite(asked[0], np.array(np.nan, np.float32))

    @property
    def result(self) -> Any:
        """Return the graph's result, when all nodes are computed."""
        return self._values(self.graph.output)

    def move(self, device: torch.device) -> None:
        """Move all values that are still read."""
        for number, value in self._values.by_number.items():
            self._values.by_number[number] = _moved(value, device)
        self._x = self._x.to(device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return type(value)(*(each.to(device) for each in value)) if isinstance(value, tuple) else value


def _hooked(context: DeviceContext, hook: Hook, x: torch.Tensor) -> torch.Tensor:
    array = context.host(x).copy()
    hook(array)
    return context.tensor(array)


def run(
    graph: Graph, forward: ForwardContext, x: Floats, weights: Weights, hooks: Mapping[int, Hook] | None = None
) -> Floats:
    """Return the graph's result for the input x (tokens, width), on the host: float32.

    hooks: as of `runtime.graph.text.run`. Raises ModelError if a layer's output is not finite.
    """
    context = DeviceContext(forward, weights)
    with torch.inference_mode():
        computing = Run(graph, context, context.tensor(x))
        computing.advance(len(graph.nodes), hooks)
        result: Floats = context.host(computing.result)
    return result
