"""The executor for devices: operations of a graph over all tokens at once, computed by torch."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..arrays import Floats
from ..graph import operations as op
from ..graph.builder import Graph
from ..layer import ForwardContext
from . import encoder_operations, indexer_operations, plain_operations, recurrent_operations, stream_operations
from .context import DeviceContext
from .table import COMPUTE, Values
from .weights import Weights

Hook = Callable[[Floats], None]
IN_MODULES = encoder_operations, indexer_operations, plain_operations, recurrent_operations, stream_operations


class Run:
    """A graph over one batch of texts, computed node by node; it can stop after any of them and go on later.

    next: the number of the next node.
    """

    def __init__(self, graph: Graph, context: DeviceContext, x: torch.Tensor) -> None:
        self.graph, self.context, self.next = graph, context, 0
        self._x, self._values = x, Values()

    def advance(self, stop: int, hooks: Mapping[int, Hook] | None = None) -> None:
        """Compute the nodes up to number `stop`. hooks: by a value's number, called with it on the host; it may be
        changed in place. Raises ModelError if a layer's output is not finite, with the layer's name.
        """
        graph, context, values = self.graph, self.context, self._values
        for number in range(self.next, stop):
            node = graph.nodes[number]
            if isinstance(node.operation, op.Input):
                values.by_number[number] = self._x
            elif node.value.rows == "some" and any(values(each) is None for each in node.operation.inputs()):
                values.by_number[number] = None
            else:
                with context.forward.timed(node.category):
                    values.by_number[number] = COMPUTE[type(node.operation)](context, node.operation, values)
            if number in graph.checked:
                _check_finite(context.forward, graph.checked[number], values.by_number[number])
            if hooks and number in hooks:
                values.by_number[number] = _hooked(context, hooks[number], values.by_number[number])
            for forgotten in graph.memory.forgotten[number]:
                del values.by_number[forgotten]
        self.next = stop

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


def _check_finite(forward: ForwardContext, where: str, x: torch.Tensor) -> None:
    if not bool(torch.isfinite(x).all()):
        forward.finite(where, x.detach().cpu().numpy())


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
