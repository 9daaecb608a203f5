"""Build a graph, checking every shape."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from archs.hparams.model_hparams import LayerHParams
from quants.errors import ModelError

from ..layer import Layer, Network
from . import operations as op
from .operations import Operation, Value


@dataclass(frozen=True, eq=False)
class Node:
    """An operation with its name. layer: its layer, None outside the layers. category: its line in a profile."""

    name: str
    layer: int | None
    operation: Operation
    value: Value
    category: str


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes start … stop that an executor may compute as one, of a type such as "attention", "experts" or "mamba2".

    inputs: values read from outside; output: the value read outside.
    """

    type: str
    layer: Layer
    start: int
    stop: int
    inputs: tuple[Value, ...]
    output: Value


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in the order in which they run; the last one gives the result.

    layer_inputs, layer_outputs: each layer's input and output, by its number. checked: by the number of a value that
    must be finite, the prefix of its layer.
    """

    nodes: tuple[Node, ...]
    layer_inputs: dict[int, Value]
    layer_outputs: dict[int, Value]
    regions: tuple[Region, ...] = ()
    checked: dict[int, str] = field(default_factory=dict)

    @property
    def output(self) -> Value:
        return self.nodes[-1].value

    @cached_property
    def memory(self) -> "Memory":
        return Memory.of(self)


@dataclass(frozen=True)
class Memory:
    """When memory of values can be released, or reused.

    forgotten: by node, the numbers of the values that nothing reads after it. overwritable: nodes whose overwritten
    input is not read after them.
    """

    forgotten: tuple[tuple[int, ...], ...]
    overwritable: frozenset[int]

    @staticmethod
    def of(graph: Graph) -> "Memory":
        owner, last = list(range(len(graph.nodes))), list(range(len(graph.nodes)))
        for number, node in enumerate(graph.nodes):
            inputs = [value.number for value in node.operation.inputs()]
            if node.operation.is_view:
                owner[number] = owner[inputs[0]]
            for each in (*inputs, number):
                last[owner[each]] = number
        last[owner[graph.output.number]] = len(graph.nodes)
        for number, node in enumerate(graph.nodes):
            if isinstance(node.operation, op.Input):  # the caller's
                last[number] = len(graph.nodes)
        forgotten: list[list[int]] = [[] for _ in graph.nodes]
        for number in range(len(graph.nodes)):
            if last[owner[number]] < len(graph.nodes):
                forgotten[last[owner[number]]].append(number)
        free = {
            number
            for number, node in enumerate(graph.nodes)
            if node.operation.overwrites
            and last[owner[getattr(node.operation, node.operation.overwrites).number]] == number
        }
        return Memory(tuple(map(tuple, forgotten)), frozenset(free))


@dataclass
class Builder:
    """A graph under construction. predicts: the file's predictor selects neurons.

    keeps: the layer being built is the last, after whose mixer only the rows for the head continue. reads_blocks:
    attention is that of a draft model's blocks. category: the line of a profile that counts them. side: before
    the names of values, "enc." in an encoder whose graph has a decoder, too.
    """

    network: Network
    predicts: bool = False
    nodes: list[Node] = field(default_factory=list)
    layer_inputs: dict[int, Value] = field(default_factory=dict)
    layer_outputs: dict[int, Value] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    checked: dict[int, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    layer: Layer | None = None
    keeps: bool = False
    reads_blocks: bool = False
    category: str = ""
    side: str = ""

    def enclose(self, type: str, layer: Layer, start: int, inputs: tuple[Value, ...], output: Value) -> Value:
        """Record the nodes from `start` on as a region; return its output."""
        self.regions.append(Region(type, layer, start, len(self.nodes), inputs, output))
        return output

    def add(self, name: str, operation: Operation) -> Value:
        """Add a node. name: without the layer's number; a repeated name gets a number.

        Raises ModelError for shapes that do not fit.
        """
        try:
            shape = operation.shape()
        except ModelError as error:
            where = self.full_name(name)
            raise ModelError(f"the operation '{where}' cannot be built: {error}", hint=error.hint) from None
        rows = operation.rows_given or next((value.rows for value in operation.inputs()), "all")
        value = Value(len(self.nodes), shape, rows)
        index = None if self.layer is None else self.layer.index
        category = (
            operation.category if operation.category in ("products", "norms") else self.category or operation.category
        )
        self.nodes.append(Node(self._own_name(name), index, operation, value, category))
        return value

    @contextmanager
    def counted_as(self, category: str) -> Iterator[None]:
        """Count operations added inside in this category of a profile, except products and norms."""
        before, self.category = self.category, category
        yield
        self.category = before

    def _own_name(self, name: str) -> str:
        """Return the full, unique name."""
        own, count = self.full_name(name), 1
        while own in self.names:
            count += 1
            own = self.full_name(f"{name}_{count}")
        self.names.add(own)
        return own

    def full_name(self, name: str) -> str:
        return f"{self.side}{name}" if self.layer is None else f"{self.side}{name}-{self.layer.index}"

    def numbers(self, layer: Layer) -> LayerHParams:
        return self.network.hparams.layers[layer.index]

    def kept(self, x: Value) -> Value:
        """Return the rows of x for the head, in the last layer; x itself in others."""
        return self.add("rows_kept", op.KeepRows(x)) if self.keeps and x.rows == "all" else x

    def norm(self, layer: Layer, role: str, x: Value, name: str = "", eps: float = 0.0) -> Value:
        """Return the norm `role`; x itself if the layer has none and the family's norms have weights."""
        there = f"{role}.weight" in layer or role in layer
        if not there and not self.network.block.norm.endswith("_without_weights"):
            return x
        return self.add(name or role, op.Norm(x, layer, role, eps))

    def norm_if_there(self, layer: Layer, role: str, x: Value, name: str = "", eps: float = 0.0) -> Value:
        """Return `norm`, but x itself also if norms have no weights and may be implied."""
        there = f"{role}.weight" in layer or role in layer
        return self.add(name or role, op.Norm(x, layer, role, eps)) if there else x

    def linear(self, layer: Layer, role: str, x: Value, name: str = "", split: tuple[int, ...] = ()) -> Value:
        return self.add(name or role, op.Linear(x, layer, role, split))

    def scaled(self, x: Value, factor: float, name: str) -> Value:
        return x if factor == 1 else self.add(name, op.Scale(x, factor))

    def graph(self) -> Graph:
        return Graph(tuple(self.nodes), self.layer_inputs, self.layer_outputs, tuple(self.regions), self.checked)


def has(layer: Layer, *roles: str) -> bool:
    """Return whether a layer has a weight of one of these names."""
    return any(f"{role}.weight" in layer for role in roles)


Build = Callable[[Builder, Layer, Value], Value]
