"""The executor for devices: operations of a graph over all tokens at once, computed by torch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..arrays import Floats
from ..graph import operations as op
from ..graph.builder import Graph
from ..graph.operations import Value
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

    `supply` gives it the value of its first node where that is its input. next: the number of the next node.
    """

    def __init__(self, graph: Graph, context: DeviceContext) -> None:
        self.graph, self.context, self.next = graph, context, 0
        self._values = Values()
        self._unchecked: tuple[str, torch.Tensor] | None = None  # a layer, and whether its output is finite

    def advance(self, stop: int, hooks: Mapping[int, Hook] | None = None) -> None:
        """Compute the nodes up to number `stop`.

        hooks: by a value's number, called with it on the host; it may be changed in place. They get neither cached keys
        nor what was not computed. Raises ModelError if a layer's output is not finite, with the layer's name.
        """
        graph, context, values = self.graph, self.context, self._values
        for number in range(self.next, stop):
            node = graph.nodes[number]
            if node.value.rows == "some" and any(values(each) is None for each in node.operation.inputs()):
                value = None
            else:
                with context.forward.timed(node.category):
                    value = COMPUTE[type(node.operation)](context, node.operation, values)
            self.supply(value, hooks)

    def supply(self, value: Any, hooks: Mapping[int, Hook] | None = None) -> None:
        """Set the next node's value, and forget those that nothing reads any more. Raises ModelError as `advance`."""
        graph, number = self.graph, self.next
        if number in graph.checked:
            self._check_finite(graph.checked[number], value)
        if hooks and number in hooks and isinstance(value, torch.Tensor):
            value = _hooked(self.context, hooks[number], value)
        self._values.by_number[number] = value
        for forgotten in graph.memory.forgotten[number]:
            self._values.by_number.pop(forgotten, None)
        self.next = number + 1
        if self.next == len(graph.nodes):
            self.check_finite()

    def check_finite(self) -> None:
        """Raise ModelError if the last layer's output is not finite."""
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

    def value(self, value: Value) -> Any:
        """Return a computed value that later nodes read."""
        return self._values(value)

    @property
    def values(self) -> dict[int, Any]:
        """Return the values that are there, by number; changes of the dictionary are changes of the run."""
        return self._values.by_number

    def restore(self, values: Mapping[int, Any], following: int) -> None:
        """Go on before the node `following`, with the values that a run of the same graph had there."""
        self._values.by_number, self.next = dict(values), following


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
        computing = Run(graph, context)
        if isinstance(graph.nodes[0].operation, op.Input):  # else it begins with ids of tokens
            computing.supply(context.tensor(x), hooks)
        computing.advance(len(graph.nodes), hooks)
        result: Floats = context.host(computing.result)
    return result
