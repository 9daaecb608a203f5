"""The machine operations of a graph for a few tokens, and the places of its values, as writers add them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor

from ..arrays import Floats
from ..kernels import context_state, dots, state_operations, thread_team
from ..kernels import token_parts as parts
from ..layer import Network
from ..mixers import compiled_experts, state_mixers
from ..mixers.compiled_attention import Bound, Workspace
from ..products.gemv import Vectors, stored_rows, vectors
from .builder import Graph, Node
from .operations import Value

Ints = NDArray[np.int64]


@dataclass
class MachineList:
    """Machine operations under construction. kept: arrays whose addresses they hold. read: bytes of weights read per
    token.
    """

    rows: list[Ints] = field(default_factory=list)
    kept: list[NDArray[Any]] = field(default_factory=list)
    waits: int = 0
    read: int = 0

    def add(self, operation: Callable[[], int], fields: dict[int, Any], wait: bool = True) -> None:
        """Add an operation. wait: threads wait for one another after it. Arrays in fields become addresses."""
        self.kept += [value for value in fields.values() if isinstance(value, np.ndarray)]
        self.rows.append(thread_team.operation_row(operation(), fields, wait))
        self.waits += wait
        if dots.WEIGHTS in fields and operation in dots.OF_FORMAT.values():
            self.read += fields[dots.ROW_BYTES] * fields[dots.ROWS] * fields.get(dots.USED, 1)


@dataclass
class Call:
    """Operations computed by the executor for texts, before machine operation `row`. to: by number of value, where
    results go. forgets: values that no later call reads.
    """

    row: int
    nodes: list[Node] = field(default_factory=list)
    to: dict[int, Vectors] = field(default_factory=dict)
    forgets: set[int] = field(default_factory=set)


Heads = tuple[int, int]  # their number and width


class Lowering:
    """The machine operations of a graph, and the places of its values.

    state: values that each run sets anew (`kernels.context_state`). rows_of: by value, its place. calls: in
    their order. before: by layer, how many operations come before it. bound: by layer with keys, their addresses and
    the rows that read tables. tables: by layer with states, the addresses of each state by slot. keys: by layer with
    keys of its own, the shapes of a token's keys and values. states: by layer, the shapes of its states.
    """

    def __init__(self, network: Network, graph: Graph, threads: int) -> None:
        self.network, self.graph, self.threads = network, graph, threads
        self.state: Ints = np.zeros(context_state.SIZE, np.int64)
        self.list, self.workspace, self.rooms = MachineList(), Workspace(threads), compiled_experts.Rooms()
        self.rows_of: dict[int, Vectors] = {}
        self.calls: list[Call] = []
        self.before: dict[int, int] = {}
        self.bound: dict[int, Bound] = {}
        self.tables: dict[int, tuple[Ints, ...]] = {}
        self.keys: dict[int, tuple[Heads, Heads]] = {}
        self.states: dict[int, tuple[tuple[int, ...], ...]] = {}
        self.first_values: Vectors | None = None  # from RWKV 7's first layer, read by later ones
        self.stored: dict[str, NDArray[np.uint8]] = {}
        self.number = 0
        self.asked = {value.number for value in (graph.output, *graph.layer_inputs.values())}  # in rows
        self.asked |= {value.number for value in graph.layer_outputs.values()}
        self._packed: set[int] = set()  # rows whose integers match their numbers
        self._free: dict[int, list[tuple[int, Vectors]]] = {}  # by width: since which barrier, and rows
        self._live: dict[int, tuple[Vectors, set[int]]] = {}  # by rows: the values in them
        self._readers: dict[int, list[int]] = {}
        for number, node in enumerate(graph.nodes):
            for value in node.operation.inputs():
                self._readers.setdefault(value.number, []).append(number)

    def vectors_of(self, value: Value) -> Vectors:
        """Return a value's place, with its integers."""
        self.asked.add(value.number)
        return self.rows_of[value.number]

    def packed(self, value: Value) -> Vectors:
        """Return the place of a value for products with quantized weights: its integers are made unless a writer
        has.
        """
        rows = self.vectors_of(value)
        if not self.is_packed(rows):
            self.pack(rows)
        return rows

    def is_packed(self, rows: Vectors) -> bool:
        """Return whether the integers of rows match their numbers."""
        return id(rows) in self._packed

    def has_rows(self, value: Value) -> bool:
        """Return whether a value is in rows: numbers of one array."""
        return value.number in self.rows_of

    def is_last_reader(self, value: Value, number: int) -> bool:
        """Return whether nothing reads a value, or its memory under another number, after a node."""
        here = self.rows_of[value.number]
        same = [other for other, rows in self.rows_of.items() if rows is here]
        if self.graph.output.number in same:
            return False
        return max((at for other in same for at in self._readers.get(other, [])), default=-1) <= number

    def sole_reader(self, value: Value) -> int | None:
        readers = self._readers.get(value.number, [])
        return readers[0] if len(readers) == 1 and value.number != self.graph.output.number else None

    def put(self, value: Value, rows: Vectors, packed: bool = False) -> None:
        """Record a value's place, and whether its integers are there, too."""
        self.rows_of[value.number] = rows
        (self._packed.add if packed else self._packed.discard)(id(rows))
        if id(rows) in self._live:
            self._live[id(rows)][1].add(value.number)

    def new(self, value: Value, packed: bool = False) -> Vectors:
        """Return rows for a value. packed: its integers are written with it."""
        rows = self._room(value.width)
        self._live[id(rows)] = rows, set()
        self.put(value, rows, packed)
        return rows

    def bytes_of(self, weight: Tensor) -> NDArray[np.uint8]:
        if weight.name not in self.stored:
            self.stored[weight.name] = stored_rows(weight)
        return self.stored[weight.name]

    def add(self, operation: Callable[[], int], fields: dict[int, Any], wait: bool = True) -> None:
        self.list.add(operation, {parts.STATE: self.state} | fields, wait)

    def pack(self, x: Vectors) -> None:
        """Add an operation that writes the integers of x."""
        self.copy(x.floats, x)
        self._packed.add(id(x))

    def copy(self, x: Floats, out: Vectors) -> None:
        """Add an operation that copies the first columns of x to `out`, also as integers."""
        self.list.add(
            state_operations.norm_groups,
            {
                state_operations.STATE: self.state,
                state_operations.WIDTH: out.width,
                state_operations.GROUPS: 1,
                **state_mixers.rows_in(x),
                **state_mixers.rows_out(out, True),
            },
        )

    def _room(self, width: int) -> Vectors:
        """Return rows that nothing has read since the last barrier, or new ones."""
        free = self._free.get(width, [])
        place = next((i for i, (since, _) in enumerate(free) if since < self.list.waits), None)
        return vectors(width) if place is None else free.pop(place)[1]

    def forget(self, number: int) -> None:
        """Release rows whose values nothing reads after a node."""
        for key, (rows, values) in list(self._live.items()):
            last = max((at for value in values for at in self._readers.get(value, [])), default=-1)
            if last <= number and max(values) <= number and self.graph.output.number not in values:
                del self._live[key]
                self._free.setdefault(rows.width, []).append((self.list.waits, rows))
