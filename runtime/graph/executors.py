"""Choose the executor of a pass: `text` on the processor, or the device that the pass names."""

from collections.abc import Mapping
from typing import Any

from ..arrays import Floats
from ..layer import ForwardContext
from . import text
from .builder import Graph
from .text import Hook


def run(graph: Graph, forward: ForwardContext, x: Floats, hooks: Mapping[int, Hook] | None = None) -> Any:
    """Return the graph's result for the input x (tokens, width), whose array stays as it is: float32.

    hooks: by a value's number, called with the computed value; it may be changed in place. Raises ModelError if a
    layer's output is not finite, with the layer's name.
    """
    if forward.device is not None:
        return forward.device.run(graph, forward, x, hooks)
    return text.run(graph, forward, x, hooks)
