"""A model's list of operations as plain data: order, weights and shapes.

Names are those of llama.cpp's graphs where it has a name for the same value (see `runtime.graph`).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from quants.arguments import PathLike
from quants.errors import OptionError

from ..models.model import Model, opened
from ..models.running import running_model
from ..writing.report import Report

if TYPE_CHECKING:
    from archs.hparams.model_hparams import HParams
    from quants import Tensor
    from runtime.graph.builder import Node
    from runtime.graph.operations import Operation


@dataclass(frozen=True)
class NodeWeight:
    """A tensor that a node reads. shape: rows first."""

    name: str
    format: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GraphNode:
    """An operation. layer: number of its layer, None outside layers. inputs: names of nodes. shape: of one token's
    value.

    attributes: numbers and names that decide the result, such as the base of a rotary embedding.
    """

    number: int
    name: str
    layer: int | None
    operation: str
    inputs: tuple[str, ...]
    weights: tuple[NodeWeight, ...]
    shape: tuple[int, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are built alike: the nodes of the first, and the numbers of the others."""

    nodes: tuple[GraphNode, ...]
    layer: int | None
    others: tuple[int, ...] = ()

    @property
    def prefix(self) -> str:
        """Return the common prefix of the names of the layer's tensors: blk.0, enc.blk.0; empty without tensors."""
        names = (weight.name for node in self.nodes for weight in node.weights)
        matches = (re.match(rf"[a-z.]+\.{self.layer}(?=\.)", name) for name in names)
        return next((each[0] for each in matches if each), "")


@dataclass(frozen=True)
class ModelGraph(Report):
    """Nodes in the order in which they run."""

    file: str
    architecture: str
    nodes: tuple[GraphNode, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the numbers of the layers."""
        return tuple(dict.fromkeys(node.layer for node in self.nodes if node.layer is not None))

    def of_layer(self, layer: int) -> "ModelGraph":
        """Return the graph of one layer. Raises OptionError for a number that does not exist."""
        if layer not in self.layers:
            last = f"layers 0 to {self.layers[-1]}" if self.layers else "no layers"
            raise OptionError(f"there is no layer {layer}: {self.file} has {last}")
        return ModelGraph(self.file, self.architecture, tuple(node for node in self.nodes if node.layer == layer))

    def node(self, name: str) -> GraphNode:
        """Return a node by its name. Raises OptionError for a name that does not exist."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise OptionError(f"the graph of {self.file} has no node {name!r}")

    def groups(self) -> list[LayerGroup]:
        """Return the nodes of each layer, and of each stretch between layers."""
        groups: list[list[GraphNode]] = []
        for node in self.nodes:
            if not groups or groups[-1][0].layer != node.layer:
                groups.append([])
            groups[-1].append(node)
        return [LayerGroup(tuple(nodes), nodes[0].layer) for nodes in groups]

    def distinct_groups(self) -> list[LayerGroup]:
        """Return `groups` with layers that are built alike merged into the first of them."""
        first: dict[str, int] = {}
        groups: list[LayerGroup] = []
        for run in self.groups():
            layer, make = run.layer, _layer_signature(run.nodes)
            if layer is None or make not in first:
                first[make] = len(groups)
                groups.append(run)
            else:
                before = groups[first[make]]
                groups[first[make]] = LayerGroup(before.nodes, before.layer, (*before.others, layer))
        return groups

    def dot(self) -> str:
        """Return the graph in Graphviz' language."""
        return "\n".join(_dot(self)) + "\n"


def graph(source: PathLike | Model) -> ModelGraph:
    """Return the list of operations from tokens to logits; no weights are read.

    source: a GGUF file (any shard of a split set), a Hugging Face folder, or a Model. An encoder-decoder model has the
    nodes of its encoder first, with names that begin with "enc.". Raises FileError for a file without a model, and
    ModelError for tensors whose shapes do not fit.
    """
    from runtime.node_values import whole_graph

    model = opened(source)
    running = running_model(model)
    hparams, nodes = running.network.hparams, whole_graph(running).nodes
    return ModelGraph(str(model.path), model.architecture, tuple(_plain(node, nodes, hparams) for node in nodes))


def _plain(node: "Node", nodes: "Sequence[Node]", hparams: "HParams") -> GraphNode:
    return GraphNode(
        node.value.number,
        node.name,
        node.layer,
        type(node.operation).__name__,
        tuple(nodes[value.number].name for value in node.operation.inputs()),
        tuple(_weight(tensor) for tensor in node.operation.weights()),
        node.value.shape,
        attributes(node.operation, hparams),
    )


def _weight(tensor: "Tensor") -> NodeWeight:
    return NodeWeight(tensor.name, tensor.format.name, tuple(tensor.shape))


def attributes(operation: "Operation", hparams: "HParams") -> dict[str, Any]:
    """Return the values that decide an operation's result besides its inputs and weights."""
    values: dict[str, Any] = {}
    for each in fields(operation):
        value = getattr(operation, each.name)
        if callable(value) and hasattr(value, "__name__"):
            value = value.__name__
        if each.name not in ("role", "size", "suffix") and value not in (None, False, ()) and _is_plain(value):
            values[each.name] = value
    own_attributes = _BY_OPERATION.get(type(operation).__name__)
    return values | (own_attributes(operation, hparams) if own_attributes else {})


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, tuple) and all(map(_is_plain, value)))
    )


def _of_rotation(operation: Any, hparams: "HParams") -> dict[str, Any]:
    own = operation.own
    return {"base": own.rope_base, "width": own.rope_width, "scaled": own.rope_scaled, "pairs": hparams.rope}


def _of_attention(operation: Any, hparams: "HParams") -> dict[str, Any]:
    own = operation.own
    numbers = {"heads": own.heads, "kv_heads": own.kv_heads, "scale": own.attention_scale, "window": own.window}
    numbers |= {"chunk": own.chunk, "softcap": hparams.attention_softcap, "alibi": hparams.alibi}
    return {name: value for name, value in numbers.items() if value}


def _of_layer(operation: Any, hparams: "HParams") -> dict[str, Any]:
    return {"heads": hparams.layers[operation.layer.index].heads}


def _of_norm(operation: Any, hparams: "HParams") -> dict[str, Any]:
    return {"eps": operation.eps or hparams.eps}


_BY_OPERATION: Mapping[str, Callable[[Any, "HParams"], dict[str, Any]]] = {
    "Rope": _of_rotation,
    "Attention": _of_attention,
    "SharedAttention": _of_attention,
    "LatentAttention": _of_layer,
    "WidenedAttention": _of_layer,
    "Norm": _of_norm,
    "HeadNorm": lambda operation, hparams: {"eps": hparams.eps},
}


def _layer_signature(nodes: Sequence[GraphNode]) -> str:
    """Return a text that is equal for layers that are built alike."""
    start, layer = nodes[0].number, nodes[0].layer
    names = {node.name: node.number - start for node in nodes}

    def plain(name: str) -> str:
        return re.sub(rf"^([a-z.]+)\.{layer}\.", r"\1.", name)

    return json.dumps(
        [
            [
                node.name.removesuffix(f"-{layer}"),
                node.operation,
                [names.get(name, -1) for name in node.inputs],
                [[plain(weight.name), weight.format, weight.shape] for weight in node.weights],
                node.shape,
                node.attributes,
            ]
            for node in nodes
        ]
    )


def _dot(shown: ModelGraph) -> Iterator[str]:
    yield f"digraph {_quoted(shown.file)} {{"
    yield "  rankdir=TB;"
    yield '  node [shape=box, fontname="monospace"];'
    numbers = {node.name: node.number for node in shown.nodes}
    layer: int | None = None
    for node in shown.nodes:
        if node.layer != layer:
            if layer is not None:
                yield "  }"
            layer = node.layer
            if layer is not None:
                yield f"  subgraph cluster_{layer} {{"
                yield f'    label="layer {layer}";'
        lines = [f"{node.number} {node.name}", node.operation, *(_dot_weight(weight) for weight in node.weights)]
        lines.append(" × ".join(map(str, node.shape)))
        yield f"  {'  ' if layer is not None else ''}n{node.number} [label={_quoted(*lines)}];"
    if layer is not None:
        yield "  }"
    for node in shown.nodes:
        for name in node.inputs:
            if name in numbers:
                yield f"  n{numbers[name]} -> n{node.number};"
    yield "}"


def _dot_weight(weight: NodeWeight) -> str:
    return f"{weight.name} {weight.format}"


def _quoted(*lines: str) -> str:
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for line in lines]
    return '"' + "\\n".join(escaped) + '"'
