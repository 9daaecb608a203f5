"""Lower a graph to machine operations for a few tokens, run by threads in step, with calls of the other executor in
between.

Each operation type, or a region of several operations, has a writer that appends its machine operations; one without a
writer, or whose tensors a writer does not support, is called through the executor for texts in the middle of the graph,
and only its own time is lost.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.hparams.model_hparams import LayerHParams
from archs.spec import sum_factor
from quants import Tensor

from ..arrays import Floats
from ..kernels import attention_operations as heads_of
from ..kernels import context_state, dots, expert_operations, state_operations, thread_team
from ..kernels import token_parts as parts
from ..layer import Layer, Network
from ..mixers import compiled_experts, delta_mixers, rwkv_mixers, state_mixers
from ..mixers.compiled_attention import (
    Bound,
    Workspace,
    Writer,
    attention_spec,
    latent_attention_spec,
    write_attention,
    write_latent_attention,
)
from ..products.gemv import Vectors, product_fields, stored_rows, vectors
from . import operations as op
from .builder import Graph, Node, Region
from .known import is_known
from .operations import Operation, Shape, Value
from .text import COMPUTE

Ints = NDArray[np.int64]
SLOTS = context_state.MAX_TOKENS  # maximum texts that run together


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

    state: values that operations read anew in each run (`kernels.pass_state`). rows_of: by value, its place. calls: in
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
        self._asked = {value.number for value in (graph.output, *graph.layer_inputs.values())}  # in rows
        self._asked |= {value.number for value in graph.layer_outputs.values()}
        self._packed: set[int] = set()  # rows whose integers match their numbers
        self._free: dict[int, list[tuple[int, Vectors]]] = {}  # by width: since which barrier, and rows
        self._live: dict[int, tuple[Vectors, set[int]]] = {}  # by rows: the values in them
        self._readers: dict[int, list[int]] = {}
        for number, node in enumerate(graph.nodes):
            for value in node.operation.inputs():
                self._readers.setdefault(value.number, []).append(number)
        self._write()

    # For writers

    def vectors_of(self, value: Value) -> Vectors:
        """Return a value's place, with its integers."""
        self._asked.add(value.number)
        return self.rows_of[value.number]

    def packed(self, value: Value) -> Vectors:
        """Return the place of a value for products with quantized weights: its integers are made unless a writer
        has.
        """
        rows = self.vectors_of(value)
        if id(rows) not in self._packed:
            self.pack(rows)
        return rows

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

    # Writing

    def _write(self) -> None:
        regions = {region.start: region for region in self.graph.regions}
        while self.number < len(self.graph.nodes):
            node = self.graph.nodes[self.number]
            if node.layer is not None:
                self.before.setdefault(node.layer, len(self.list.rows))
            region = regions.get(self.number)
            if region is not None and (self._write_region(region) or self._call_region(region)):
                self._forget(region.stop - 1)
                self.number = region.stop
                continue
            write = WRITERS.get(type(node.operation))
            readable = all(map(self.has_rows, node.operation.inputs()))
            if write is None or not readable or self._goes_with_call() or not write(self, node.operation, node.value):
                self._call(node)
            self._forget(self.number)
            self.number += 1
        self.before[len(self.network.layers)] = len(self.list.rows)
        self._trim_calls()

    def _goes_with_call(self) -> bool:
        """Return whether a small operation comes between one that is called and another that will be."""
        if not any(map(self._is_called, self.graph.nodes[self.number].operation.inputs())):
            return False
        rest = (type(node.operation) for node in self.graph.nodes[self.number :])
        following = next((operation for operation in rest if operation not in SMALL), None)
        return following is not None and following not in WRITERS

    def _follows_call(self) -> bool:
        return bool(self.calls) and self.calls[-1].row == len(self.list.rows)

    def _is_called(self, value: Value) -> bool:
        """Return whether a value is the result of a call that may be extended."""
        return self._follows_call() and any(node.value is value for node in self.calls[-1].nodes)

    def _trim_calls(self) -> None:
        """Remove unused results of calls, and drop values that no later one reads."""
        read_later: set[int] = set()
        for call in reversed(self.calls):
            call.to = {number: rows for number, rows in call.to.items() if number in self._asked}
            reads = {value.number for node in call.nodes for value in node.operation.inputs()}
            call.forgets = (reads | {node.value.number for node in call.nodes}) - read_later
            read_later |= reads

    def _write_region(self, region: Region) -> bool:
        readable = region.type in REGIONS and all(map(self.has_rows, region.inputs))
        return readable and is_known(self.network, self.graph, region) and REGIONS[region.type](self, region)

    def _call_region(self, region: Region) -> bool:
        """Call all of a mixer at once; of attention and experts, products are compiled one by one."""
        if region.type in ("attention", "latent attention", "experts", "rwkv layer"):
            return False
        self._call(*self.graph.nodes[region.start : region.stop])
        return True

    def _call(self, *nodes: Node) -> None:
        value, operation = nodes[-1].value, nodes[-1].operation
        if isinstance(operation, op.KeepRows) and self.has_rows(operation.x) and not self._is_called(operation.x):
            rows = self.vectors_of(operation.x)  # a few tokens are all kept
            self.put(value, rows, id(rows) in self._packed)
            return
        if not self._follows_call():
            self.calls.append(Call(len(self.list.rows)))
            self.list.waits += 1
        self.calls[-1].nodes += nodes
        if operation.gives_rows and value.rows != "some":
            self.calls[-1].to[value.number] = self.new(value)

    def _room(self, width: int) -> Vectors:
        """Return rows that nothing has read since the last barrier, or new ones."""
        free = self._free.get(width, [])
        place = next((i for i, (since, _) in enumerate(free) if since < self.list.waits), None)
        return vectors(width) if place is None else free.pop(place)[1]

    def _forget(self, number: int) -> None:
        """Release rows whose values nothing reads after a node."""
        for key, (rows, values) in list(self._live.items()):
            last = max((at for value in values for at in self._readers.get(value, [])), default=-1)
            if last <= number and max(values) <= number and self.graph.output.number not in values:
                del self._live[key]
                self._free.setdefault(rows.width, []).append((self.list.waits, rows))


Write = Callable[[Lowering, Any, Value], bool]
WRITERS: dict[type[Operation], Write] = {}
SMALL: frozenset[type[Operation]] = frozenset(
    {op.Scale, op.Clamp, op.Add, op.Activate, op.Gated, op.Columns, op.Combine, op.PlainNorm}
)
REGIONS: dict[str, Callable[[Lowering, Region], bool]] = {}


def writes(*types: type[Operation]) -> Callable[[Write], Write]:
    """Register a function that writes operations of these types; it returns False for those it does not support."""

    def entered(function: Write) -> Write:
        WRITERS.update(dict.fromkeys(types, function))
        return function

    return entered


def _output(out: Vectors) -> dict[int, Any]:
    return {parts.OUT: out.floats, parts.OUT_WIDTH: out.room, parts.SHORTS: out.shorts, parts.NUMBERS_AT: out.numbers}


@writes(op.Input)
def _input(lowering: Lowering, operation: op.Input, value: Value) -> bool:
    lowering.new(value)
    return len(operation.size) == 1


@writes(op.Norm)
def _norm(lowering: Lowering, operation: op.Norm, value: Value) -> bool:
    if len(value.shape) > 1:
        return False
    x, out = lowering.vectors_of(operation.x), lowering.new(value, True)
    _add_norm(lowering, operation.layer, operation.role, x, out, operation.eps)
    return True


def _add_norm(lowering: Lowering, layer: Layer, role: str, x: Vectors, out: Vectors, eps: float) -> None:
    """Add a norm of x, like `ForwardContext.norm`. eps: 0 for the model's."""
    width = x.width
    weight, norm = layer.array(f"{role}.weight"), lowering.network.block.norm
    weight = layer.array(role) if weight is None else weight
    weight = np.ones(width, np.float32) if weight is None else weight
    bias = layer.array(f"{role}.bias")
    lowering.add(
        parts.rms_norm if norm.startswith("rms") else parts.layer_norm,
        {
            parts.X: x.floats,
            parts.X_WIDTH: x.room,
            parts.WIDTH: width,
            parts.WEIGHT: weight,
            parts.EPS: float(eps or lowering.network.hparams.eps),
            parts.BIAS: np.zeros(width, np.float32) if bias is None else bias,
            **_output(out),
        },
    )


def supports_product(layer: Layer, role: str) -> bool:
    """Return whether a weight is multiplied from its blocks, with nothing but a bias added."""
    weight = layer.tensors.get(f"{role}.weight")
    return (
        weight is not None
        and len(weight.shape) == 2
        and weight.format.name in dots.OF_FORMAT
        and f"{role}.scale" not in layer
        and f"{role}.lora_a" not in layer
    )


@writes(op.Linear)
def _linear(lowering: Lowering, operation: op.Linear, value: Value) -> bool:
    layer, role = operation.layer, operation.role
    if not supports_product(layer, role):
        return False
    weight, into = layer.need(f"{role}.weight"), _sum_of(lowering, value, lowering.number + 1)
    x = (lowering.vectors_of if weight.format.name in dots.OF_FLOATS else lowering.packed)(operation.x)
    out = lowering.new(value) if into is None else lowering.vectors_of(into)
    fields = product_fields(
        x, weight, lowering.bytes_of(weight), layer.array(f"{role}.bias"), out.floats, into is not None, lowering.state
    )
    lowering.list.add(dots.OF_FORMAT[weight.format.name], fields, not _shares_input_with_next(lowering, operation))
    if into is not None:
        lowering.put(value, out)  # the sum's place is written already
    return True


def _sum_of(lowering: Lowering, value: Value, following: int) -> Value | None:
    """Return the residual stream that a result is directly added to: the following node is the last reader of both."""
    number = lowering.sole_reader(value)
    if number is None or number != following:
        return None
    add = lowering.graph.nodes[number].operation
    if not isinstance(add, op.Add) or add.scale != 1 or add.part is not value or add.x is value:
        return None
    return add.x if lowering.has_rows(add.x) and lowering.is_last_reader(add.x, number) else None


def _shares_input_with_next(lowering: Lowering, operation: op.Linear) -> bool:
    """Return whether the next operation is a product of the same input, which therefore need not wait."""
    if lowering.number + 1 >= len(lowering.graph.nodes):
        return False
    following = lowering.graph.nodes[lowering.number + 1].operation
    if not isinstance(following, op.Linear) or following.x is not operation.x:
        return False
    return supports_product(following.layer, following.role)


@writes(op.Add)
def _add(lowering: Lowering, operation: op.Add, value: Value) -> bool:
    x, part = lowering.vectors_of(operation.x), lowering.vectors_of(operation.part)
    if x is part:  # the product has been added already
        lowering.put(value, x)
        return True
    if lowering.is_last_reader(operation.x, lowering.number):
        out = x
    else:
        out = lowering.new(value)
        lowering.copy(x.floats, out)
    lowering.add(
        parts.add_scaled,
        {
            parts.X: part.floats,
            parts.X_WIDTH: part.room,
            parts.WIDTH: value.width,
            parts.OUT: out.floats,
            parts.OUT_WIDTH: out.room,
            parts.SCALE: float(operation.scale),
        },
    )
    lowering.put(value, out)
    return True


def _step(lowering: Lowering, x: Vectors, out: Vectors, shape: Shape, code: int, fields: dict[int, Any]) -> None:
    """Add a step of `attention_operations.prepare_heads` with each number, or with heads of this shape."""
    heads, width = (1, shape[0]) if len(shape) == 1 else shape
    lowering.list.add(
        heads_of.prepare_heads,
        {
            heads_of.STATE: lowering.state,
            heads_of.X: x.floats,
            heads_of.X_WIDTH: x.room,
            heads_of.OUT: out.floats,
            heads_of.OUT_WIDTH: out.room,
            heads_of.HEADS: heads,
            heads_of.HEAD_WIDTH: width,
            heads_of.X_APART: width,
            heads_of.OUT_APART: width,
            heads_of.STEPS: code,
            **fields,
        },
    )


@writes(op.Scale)
def _scale(lowering: Lowering, operation: op.Scale, value: Value) -> bool:
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.MULTIPLY, {heads_of.SCALE: float(operation.factor)})
    return True


@writes(op.Clamp)
def _clamp(lowering: Lowering, operation: op.Clamp, value: Value) -> bool:
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.CLAMP, {heads_of.LIMIT: float(operation.limit)})
    return True


@writes(op.PlainNorm)
def _plain_norm(lowering: Lowering, operation: op.PlainNorm, value: Value) -> bool:
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.PLAIN_RMS, {heads_of.PLAIN_EPS: float(operation.eps)})
    return True


@writes(op.ScaleAndSkip)
def _scale_and_skip(lowering: Lowering, operation: op.ScaleAndSkip, value: Value) -> bool:
    """Write only a scale: embeddings that are added to it are in no rows."""
    factor = operation.layer.need_array("layer_output_scale.weight")
    if lowering.network.block.embedding_skip or factor.size != 1:
        return False
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.MULTIPLY, {heads_of.SCALE: float(factor.reshape(-1)[0])})
    return True


@writes(op.Combine)
def _combine(lowering: Lowering, operation: op.Combine, value: Value) -> bool:
    factor = sum_factor(operation.function)
    if factor is None:
        return False
    routed, shared = map(lowering.vectors_of, (operation.routed, operation.shared))
    out = lowering.new(value)
    _step(lowering, routed, out, value.shape, heads_of.MULTIPLY, {heads_of.SCALE: float(factor)})
    lowering.add(
        parts.add_scaled,
        {
            parts.X: shared.floats,
            parts.X_WIDTH: shared.room,
            parts.WIDTH: value.width,
            parts.OUT: out.floats,
            parts.OUT_WIDTH: out.room,
            parts.SCALE: float(factor),
        },
    )
    return True


@writes(op.Activate, op.Gated)
def _gated(lowering: Lowering, operation: op.Gated | op.Activate, value: Value) -> bool:
    if operation.activation not in expert_operations.ACTIVATIONS:
        return False
    first = lowering.vectors_of(operation.gate if isinstance(operation, op.Gated) else operation.x)
    out = lowering.new(value, True)
    fields = {
        expert_operations.STATE: lowering.state,
        expert_operations.X: first.floats,
        expert_operations.X_WIDTH: first.room,
        expert_operations.OUT: out.floats,
        expert_operations.OUT_WIDTH: out.room,
        expert_operations.WIDTH: value.width,
        expert_operations.SHORTS: out.shorts,
        expert_operations.NUMBERS_AT: out.numbers,
        expert_operations.ACTIVATION: expert_operations.ACTIVATIONS[operation.activation],
        expert_operations.LIMIT: np.inf,
        expert_operations.CLAMPS: expert_operations.CLAMPS_GATE,
    }
    if isinstance(operation, op.Gated):
        up = lowering.vectors_of(operation.up)
        fields |= {expert_operations.Y: up.floats, expert_operations.Y_WIDTH: up.room}
        if operation.clamps_both or operation.activation == "swiglu_oai":
            fields[expert_operations.LIMIT] = float(operation.limit)
        if not operation.clamps_gate_first and operation.activation != "swiglu_oai":
            fields[expert_operations.CLAMPS] = expert_operations.CLAMPS_ACTIVATED
    lowering.list.add(expert_operations.activate, fields)
    return True


@writes(op.Columns)
def _columns(lowering: Lowering, operation: op.Columns, value: Value) -> bool:
    if len(operation.x.shape) > 1:
        return False
    x, out = lowering.vectors_of(operation.x), lowering.new(value, True)
    lowering.copy(x.floats[:, operation.start :], out)
    return True


# Attention


def _supports_attention(lowering: Lowering, region: Region) -> bool:
    network, layer = lowering.network, region.layer
    roles = [role.removesuffix(".weight") for role in layer.tensors if role.endswith(".weight")]
    products = [role for role in roles if role.startswith("attn_") and len(layer.need(f"{role}.weight").shape) == 2]
    matrices = [role for role in products if not role.endswith("norm")]
    scaling = network.scaling
    indexed = any(role.startswith("indexer") for other in network.layers for role in other.tensors)
    return bool(
        network.block.causal
        and not (indexed and region.type == "latent attention")  # layers without an indexer reuse others' selection
        and (scaling is None or scaling.type in ("none", "linear", "yarn", "longrope"))
        and not any(role.startswith("indexer") for role in roles)
        and network.keys.get("adapters.count") is None
        and all(supports_product(layer, role) for role in matrices)
    )


def _write_attention(lowering: Lowering, region: Region) -> bool:
    if not _supports_attention(lowering, region):
        return False
    network, layer, own = lowering.network, region.layer, lowering.network.hparams.layers[region.layer.index]
    latent = region.type == "latent attention"
    source = own.kv_source_layer
    if source is not None and source not in lowering.bound:
        return False
    bound = _bound(lowering, own)
    writer = Writer(lowering.list, layer, _Bytes(lowering), lowering.state, lowering.workspace, bound)
    x = lowering.packed(region.inputs[0])
    if latent:
        spec = latent_attention_spec(network, layer)
        if spec.absorbed:
            kept = (1, spec.latent_width + spec.rope_width), (1, 0)
        else:
            kept = (own.heads, own.key_width), (own.heads, spec.value_width)
        mixed = write_latent_attention(writer, spec, x)
    else:
        kept = (own.kv_heads, own.key_width), (own.kv_heads, own.value_width)
        mixed = write_attention(writer, attention_spec(network, layer.index), x)
    lowering.bound[layer.index] = bound
    if source is None:
        lowering.keys[layer.index] = kept
    lowering.put(region.output, mixed, True)
    return True


class _Bytes(dict[str, NDArray[np.uint8]]):
    """Bytes of weights by name, as a writer requests them."""

    def __init__(self, lowering: Lowering) -> None:
        super().__init__()
        self._lowering = lowering

    def __missing__(self, name: str) -> NDArray[np.uint8]:
        layers = self._lowering.network.layers
        tensor = next(each for layer in layers for each in layer.tensors.values() if each.name == name)
        return self._lowering.bytes_of(tensor)


def _bound(lowering: Lowering, own: LayerHParams) -> Bound:
    """Return addresses of keys and values by slot: the layer's own, or those of the layer that it reuses."""
    if own.kv_source_layer is not None:
        other = lowering.bound[own.kv_source_layer]
        return Bound(other.keys, other.values)
    return Bound(np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.int64))


REGIONS["attention"] = REGIONS["latent attention"] = _write_attention


def _write_experts(lowering: Lowering, region: Region) -> bool:
    network, layer = lowering.network, region.layer
    if not compiled_experts.supports(network, layer):
        return False
    spec = compiled_experts.experts_spec(network, layer, lowering.threads)
    x, router_input = map(lowering.packed, region.inputs)
    into = _sum_of(lowering, region.output, region.stop)
    out = lowering.new(region.output) if into is None else lowering.vectors_of(into)
    choice = None
    if router_input is not x:
        choice = compiled_experts.add_choice(lowering.list, spec, router_input, lowering.state, lowering.rooms)
    factor = sum_factor(network.block.add_shared_expert) if spec.shared else None
    compiled_experts.add_experts(
        lowering.list,
        spec,
        x,
        out,
        lowering.state,
        rooms=lowering.rooms,
        choice=choice,
        adds=into is not None,
        scale=1.0 if factor is None else factor,
    )
    lowering.put(region.output, out)
    return True


REGIONS["experts"] = _write_experts


# Layers with states


def _mixer(
    specify: Callable[[Network, Layer], Any], write: Callable[[state_mixers.Mixer, Any], None]
) -> Callable[[Lowering, Region], bool]:
    def written(lowering: Lowering, region: Region) -> bool:
        layer = region.layer
        activations = ("silu", "situ") if region.type == "kimi delta" else ("silu",)
        if region.type in _ACTIVATED and lowering.network.hparams.activation not in activations:
            return False  # compiled convolutions include a silu
        roles = [role.removesuffix(".weight") for role in layer.tensors if role.endswith(".weight")]
        matrices = [
            role for role in roles if role.startswith(_PROJECTIONS) and len(layer.need(f"{role}.weight").shape) == 2
        ]
        if not all(supports_product(layer, role) for role in matrices):
            return False
        spec = specify(lowering.network, layer)
        tables = tuple(np.zeros(SLOTS, np.int64) for _ in spec.state_shapes)
        lowering.tables[layer.index], lowering.states[layer.index] = tables, spec.state_shapes
        into = _sum_of(lowering, region.output, region.stop)
        out = lowering.new(region.output) if into is None else lowering.vectors_of(into)
        x = lowering.packed(region.inputs[0])
        write(state_mixers.Mixer(lowering.list, lowering.state, tables, x, out, into is not None), spec)
        lowering.put(region.output, out)
        return True

    return written


_ACTIVATED = ("gated delta", "kimi delta", "lightning")  # by the model's activation; others only by silu
_PROJECTIONS = (
    "ssm_in",
    "ssm_out",
    "ssm_x",
    "ssm_dt",
    "ssm_ba",
    "ssm_beta",
    "ssm_alpha",
    "ssm_f",
    "ssm_g",
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_gate",
    "attn_output",
    "shortconv.in_proj",
    "shortconv.out_proj",
)


def _of_keys(specify: Callable[..., Any]) -> Callable[[Network, Layer], Any]:
    return lambda network, layer: specify(layer, network.keys, float(network.hparams.eps))


REGIONS["mamba"] = _mixer(_of_keys(state_mixers.mamba_spec), state_mixers.write_mamba)
REGIONS["mamba2"] = _mixer(_of_keys(state_mixers.mamba2_spec), state_mixers.write_mamba2)
REGIONS["mamba of heads"] = _mixer(_of_keys(state_mixers.mamba_of_heads_spec), state_mixers.write_mamba_of_heads)
REGIONS["short convolution"] = _mixer(
    lambda network, layer: state_mixers.short_convolution_spec(layer), state_mixers.write_short_convolution
)
REGIONS["gated delta"] = _mixer(delta_mixers.gated_delta_spec, delta_mixers.write_gated_delta)
REGIONS["kimi delta"] = _mixer(delta_mixers.kimi_delta_spec, delta_mixers.write_kimi_delta)
REGIONS["lightning"] = _mixer(delta_mixers.lightning_spec, delta_mixers.write_lightning)

_RWKV = re.compile(
    r"(time_mix_([wavg][12]|receptance|key|value|gate|decay_w[12]|output)|channel_mix_(key|value|receptance))\.weight"
)


def _serves_rwkv(network: Network) -> bool:
    """Return whether all layers with RWKV's mixer are supported: later ones read the first one's values."""
    layers = [layer for layer in network.layers if network.layer_type(layer).mixer.startswith("rwkv")]
    matrices = [(layer, role) for layer in layers for role in layer.tensors if _RWKV.fullmatch(role)]
    return rwkv_mixers.supports(network) and all(
        layer.need(role).format.name in dots.OF_FORMAT and f"{role.removesuffix('.weight')}.scale" not in layer
        for layer, role in matrices
    )


def _write_time_mix(lowering: Lowering, layer: Layer, x: Vectors, out: Vectors, adds: bool) -> state_mixers.Mixer:
    """Write a time mix of RWKV over x to `out`; return its mixer."""
    network, seventh = lowering.network, lowering.network.layer_type(layer).mixer == "rwkv7"
    spec: Any = (rwkv_mixers.time_mix7_spec if seventh else rwkv_mixers.time_mix6_spec)(network, layer)
    tables = tuple(np.zeros(SLOTS, np.int64) for _ in spec.state_shapes)
    lowering.tables[layer.index], lowering.states[layer.index] = tables, spec.state_shapes
    mixer = state_mixers.Mixer(lowering.list, lowering.state, tables, x, out, adds)
    if not seventh:
        rwkv_mixers.write_time_mix6(mixer, spec)
        return mixer
    values = rwkv_mixers.write_time_mix7(mixer, spec, lowering.first_values if layer.index else None)
    lowering.first_values = lowering.first_values if layer.index else values
    return mixer


def _time_mix(lowering: Lowering, region: Region) -> bool:
    if not _serves_rwkv(lowering.network):
        return False
    into, x = _sum_of(lowering, region.output, region.stop), lowering.packed(region.inputs[0])
    out = lowering.new(region.output) if into is None else lowering.vectors_of(into)
    _write_time_mix(lowering, region.layer, x, out, into is not None)
    lowering.put(region.output, out)
    return True


def _rwkv_layer(lowering: Lowering, region: Region) -> bool:
    network, layer, (value,) = lowering.network, region.layer, region.inputs
    if not _serves_rwkv(network):
        return False
    x = lowering.vectors_of(value)
    if lowering.is_last_reader(value, region.stop - 1):
        out = x
    else:
        out = lowering.new(region.output)
        lowering.copy(x.floats, out)

    def normed(role: str) -> Vectors:
        made = lowering.workspace.vectors(role, x.width)
        _add_norm(lowering, layer, role, out, made, 0.0)
        return made

    mixer = _write_time_mix(lowering, layer, normed("attn_norm"), out, True)
    mixer = replace(mixer, x=normed("attn_norm_2"))
    rwkv_mixers.write_channel_mix(mixer, rwkv_mixers.channel_mix_spec(network, layer))
    lowering.put(region.output, out)
    return True


REGIONS["time mix"], REGIONS["rwkv layer"] = _time_mix, _rwkv_layer


# Operations without a writer: those in regions, whose writers include them, are called if their region is not compiled.
CALLED: frozenset[type[Operation]] = frozenset(COMPUTE) - frozenset(WRITERS)

__all__ = ["CALLED", "REGIONS", "SLOTS", "WRITERS", "Call", "Floats", "Lowering", "supports_product"]
