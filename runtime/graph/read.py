"""How operations read values while an executor runs them, and the table of functions that compute them."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..arrays import Floats
from ..layer import ForwardContext
from ..products.matmul import Inputs
from .builder import Graph, Node
from .operations import Operation, Value

Values = dict[int, Any]
Compute = Callable[[ForwardContext, Any, "Read"], Any]
Op = TypeVar("Op", bound=Operation)

COMPUTE: dict[type[Operation], Compute] = {}


class Read:
    """Access to the values of a run."""

    def __init__(self, graph: Graph) -> None:
        self.values: Values = {}
        self._inputs: dict[int, Inputs] = {}  # of products that share them
        self._memory = graph.memory
        self.number = 0

    def __call__(self, value: Value) -> Any:
        return self.values[value.number]

    def rows(self, value: Value) -> Floats:
        """Return a value as one row a token."""
        x = self.values[value.number]
        return cast(Floats, x.reshape(len(x), -1))

    def own(self, value: Value) -> Floats:
        """Return an array that may be overwritten: a copy if it is read later."""
        x = self.values[value.number]
        return cast(Floats, x if self.number in self._memory.overwritable else x.copy())

    def product_inputs(self, forward: ForwardContext, value: Value) -> Inputs:
        """Return the input of several products, rounded or packed once."""
        if value.number not in self._inputs:
            self._inputs[value.number] = forward.inputs(self.rows(value))
        return self._inputs[value.number]

    def forget_inputs(self) -> None:
        """Release packed inputs of products."""
        self._inputs.clear()

    def forget(self) -> None:
        """Release values that nothing reads after the current node."""
        for number in self._memory.forgotten[self.number]:
            del self.values[number]
            self._inputs.pop(number, None)


def computes(
    *types: type[Op],
) -> Callable[[Callable[[ForwardContext, Op, Read], Any]], Callable[[ForwardContext, Op, Read], Any]]:
    """Register a function that computes operations of these types."""

    def entered(function: Callable[[ForwardContext, Op, Read], Any]) -> Callable[[ForwardContext, Op, Read], Any]:
        COMPUTE.update(dict.fromkeys(types, function))
        return function

    return entered


def computed(forward: ForwardContext, node: Node, read: Read) -> Any:
    """Return a node's result; None if its input is None."""
    if node.value.rows == "some" and any(read(value) is None for value in node.operation.inputs()):
        return None
    return COMPUTE[type(node.operation)](forward, node.operation, read)
