"""Divide a graph between a device and RAM as ggml's scheduler does, with the copies of tensors that cross over.

A product runs where its weights are. What nobody decides runs where its neighbours in the order of evaluation do, on
the device if it can. If a step has many tokens, the device also computes with weights that are in RAM: it copies them
first, and the copies count in its compute buffer. Inputs are made in RAM, and copied at the start of the part that
reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .nodes import Graph, Node, leaf, packed

DEVICE, RAM = 0, 1
UNDECIDED = -1
COPIES_WEIGHTS_FROM = 32  # tokens of a step from which the device computes with weights in RAM
VIEWS = frozenset(["none", "reshape", "view", "permute", "transpose"])


@dataclass
class Part:
    """A run of nodes on one device. inputs: tensors of the other one that it reads."""

    place: int
    nodes: list[Node]
    inputs: list[Node]


def scheduled(graph: Graph, copies_weights: bool = True) -> tuple[list[Node], list[Node]]:
    """Return leaves and nodes, each with its place, copies among them. Stored leaves have theirs already.

    copies_weights: the device computes with weights in RAM (llama.cpp's `op_offload`), as those of all but RPC do.
    """
    for node in graph.leaves:
        if node.input:
            node.place = RAM
    for node in graph.nodes:
        node.place = _decided(node, copies_weights)
    for order, spread in ((1, DEVICE), (-1, DEVICE), (1, UNDECIDED), (-1, UNDECIDED)):
        _spread(graph.nodes[::order], spread)
    for node in graph.nodes:
        if node.place == UNDECIDED:
            node.place = node.view_of.place if node.view_of is not None else DEVICE
        for source in node.sources:
            if source.place == UNDECIDED:
                source.place = source.view_of.place if source.view_of is not None else node.place
    return graph.leaves, _joined(_parts(graph.nodes))


def _decided(node: Node, copies_weights: bool) -> int:
    """Return the place that a node's memory or weights decide."""
    if node.view_of is not None and node.view_of.stored:
        return node.view_of.place
    if node.operation in ("rope", "flash_attention"):
        return UNDECIDED
    for source in node.sources:
        if source.weight:
            many = copies_weights and _rows(node) >= COPIES_WEIGHTS_FROM
            return DEVICE if source.place == RAM and many else source.place
    return UNDECIDED


def _rows(node: Node) -> int:
    """Return how many tokens a node computes, as the scheduler counts them."""
    if node.operation == "get_rows":
        return 0
    if node.operation == "mul_mat":
        return node.shape[1]
    return node.shape[2] if node.operation in ("mul_mat_id", "rope") else node.shape[1] * node.shape[2] * node.shape[3]


def _spread(nodes: Sequence[Node], only: int) -> None:
    """Give undecided nodes the place of the one before; only: of those on the device."""
    current = UNDECIDED
    for node in nodes:
        if node.operation in VIEWS:
            continue
        if node.place == UNDECIDED:
            node.place = current
        else:
            current = UNDECIDED if only == DEVICE and node.place == RAM else node.place


def _parts(nodes: Sequence[Node]) -> list[Part]:
    """Divide nodes into parts; sources of the other place become copies."""
    first = next((node.place for node in nodes if node.operation not in VIEWS), DEVICE)
    parts, copies = [Part(first, [], [])], dict[tuple[int, int], Node]()
    for node in nodes:
        if node.operation in VIEWS:
            parts[-1].nodes.append(node)
            continue
        foreign = [source for source in node.sources if source.place != node.place]
        fresh_weight = bool(parts[-1].inputs) and any(source.weight for source in foreign)
        if node.place != parts[-1].place or fresh_weight:
            parts.append(Part(node.place, [], []))
        part = parts[-1]
        for source in foreign:
            if (id(source), node.place) not in copies:
                copies[id(source), node.place] = _copy(source, node.place)
                part.inputs.append(source)
        if foreign:
            node.sources = tuple(
                copies[id(each), node.place] if each.place != node.place else each for each in node.sources
            )
        part.nodes.append(node)
    for part in parts:
        part.inputs = [*part.inputs]
        part.nodes = [
            node for source in part.inputs for node in (_kept(source), copies[id(source), part.place])
        ] + part.nodes
    return parts


def _copy(source: Node, place: int) -> Node:
    """Return the tensor on the other device."""
    made = leaf(source.type, *source.shape, name=source.name)
    made.input, made.place = False, place
    if source.strides != packed(source.type, source.shape):
        made.strides = source.strides
    return made


def _kept(source: Node) -> Node:
    """Return a reader that keeps a tensor until its copy is made."""
    return Node(
        "none", source.type, source.shape, source.strides, (source,), source.view_of or source, place=source.place
    )


def _joined(parts: Sequence[Part]) -> list[Node]:
    return [node for part in parts for node in part.nodes]
