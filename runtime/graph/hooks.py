"""Observers of values: functions that an executor calls with nodes' results, by name or by operation type."""

from collections.abc import Callable, Mapping
from typing import Any

from quants.errors import OptionError

from .builder import Graph, Node
from .operations import Operation
from .text import Hook

Observer = Callable[[Node, Any], None]
Wanted = str | type[Operation]


def hooks_on(graph: Graph, observers: Mapping[Wanted, Observer]) -> dict[int, Hook]:
    """Return hooks for `runtime.graph.text.run`, by the number of the value that they are called with.

    observers: by a node's name (`attn_out-3`), by a name without layer (`attn_out`), or by the class of an operation
    (`operations.Norm`, and its subclasses). An observer is called with the node and its value, (tokens, …): changing
    the array in place changes what follows; it may be overwritten after the call, so copy it to keep it. Raises
    OptionError for an unknown name.
    """
    by_value: dict[int, list[tuple[Node, Observer]]] = {}
    for wanted, observer in observers.items():
        nodes = [node for node in graph.nodes if _is_meant(node, wanted)]
        if not nodes and isinstance(wanted, str):
            raise OptionError(f"the graph has no node {wanted!r}", hint="`gguftools graph MODEL` lists them")
        for node in nodes:
            by_value.setdefault(node.value.number, []).append((node, observer))
    return {number: _all_of(each) for number, each in by_value.items()}


def _is_meant(node: Node, wanted: Wanted) -> bool:
    if isinstance(wanted, str):
        return wanted in (node.name, base_name(node))
    return isinstance(node.operation, wanted)


def base_name(node: Node) -> str:
    """Return a node's name without the number of its layer."""
    return node.name if node.layer is None else node.name.removesuffix(f"-{node.layer}")


def _all_of(observers: list[tuple[Node, Observer]]) -> Hook:
    def hook(value: Any) -> None:
        for node, observer in observers:
            observer(node, value)

    return hook
