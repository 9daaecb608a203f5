"""Lower a graph to machine operations for a few tokens, run by threads in step, with calls of the other executor in
between.

Each operation type, or a region of several operations, has a writer that appends its machine operations; one without a
writer, or whose tensors a writer does not support, is called through the executor for texts in the middle of the graph,
and only its own time is lost.
"""

from ..layer import Network
from . import operations as op
from .builder import Graph, Node, Region
from .known import is_known
from .lowering import Call, Lowering
from .operations import Operation, Value
from .region_writers import REGIONS
from .text import COMPUTE
from .writers import SMALL, WRITERS

# Operations without a writer: those in regions, whose writers include them, are called if their region is not compiled.
CALLED: frozenset[type[Operation]] = frozenset(COMPUTE) - frozenset(WRITERS)


def lower(network: Network, graph: Graph, threads: int) -> Lowering:
    """Return the machine operations of a graph, and the calls in between."""
    lowering, regions = Lowering(network, graph, threads), {region.start: region for region in graph.regions}
    while lowering.number < len(graph.nodes):
        node = graph.nodes[lowering.number]
        if node.layer is not None:
            lowering.before.setdefault(node.layer, len(lowering.list.rows))
        region = regions.get(lowering.number)
        if region is not None and (_write_region(lowering, region) or _call_region(lowering, region)):
            lowering.forget(region.stop - 1)
            lowering.number = region.stop
            continue
        if not _write(lowering, node):
            _call(lowering, node)
        lowering.forget(lowering.number)
        lowering.number += 1
    lowering.before[len(network.layers)] = len(lowering.list.rows)
    _trim_calls(lowering)
    return lowering


def _write(lowering: Lowering, node: Node) -> bool:
    """Write an operation; return False if it has no writer, reads a value without rows, or is better called."""
    operation = node.operation
    write, readable = WRITERS.get(type(operation)), all(map(lowering.has_rows, operation.inputs()))
    return bool(write and readable and not _goes_with_call(lowering) and write(lowering, operation, node.value))


def _goes_with_call(lowering: Lowering) -> bool:
    """Return whether a small operation is between a called operation and another one that will be called."""
    nodes = lowering.graph.nodes[lowering.number :]
    if not any(_is_called(lowering, value) for value in nodes[0].operation.inputs()):
        return False
    rest = (type(node.operation) for node in nodes)
    following = next((operation for operation in rest if operation not in SMALL), None)
    return following is not None and following not in WRITERS


def _follows_call(lowering: Lowering) -> bool:
    return bool(lowering.calls) and lowering.calls[-1].row == len(lowering.list.rows)


def _is_called(lowering: Lowering, value: Value) -> bool:
    """Return whether a value is the result of a call that may be extended."""
    return _follows_call(lowering) and any(node.value is value for node in lowering.calls[-1].nodes)


def _trim_calls(lowering: Lowering) -> None:
    """Remove unused results of calls, and drop values that no later one reads."""
    read_later: set[int] = set()
    for call in reversed(lowering.calls):
        call.to = {number: rows for number, rows in call.to.items() if number in lowering.asked}
        reads = {value.number for node in call.nodes for value in node.operation.inputs()}
        call.forgets = (reads | {node.value.number for node in call.nodes}) - read_later
        read_later |= reads


def _write_region(lowering: Lowering, region: Region) -> bool:
    readable = region.type in REGIONS and all(map(lowering.has_rows, region.inputs))
    return readable and is_known(lowering.network, lowering.graph, region) and REGIONS[region.type](lowering, region)


def _call_region(lowering: Lowering, region: Region) -> bool:
    """Call all of a mixer at once; of attention and experts, products are compiled one by one."""
    if region.type in ("attention", "latent attention", "experts", "rwkv layer"):
        return False
    _call(lowering, *lowering.graph.nodes[region.start : region.stop])
    return True


def _call(lowering: Lowering, *nodes: Node) -> None:
    value, operation = nodes[-1].value, nodes[-1].operation
    if isinstance(operation, op.KeepRows) and lowering.has_rows(operation.x) and not _is_called(lowering, operation.x):
        rows = lowering.vectors_of(operation.x)  # a few tokens are all kept
        lowering.put(value, rows, lowering.is_packed(rows))
        return
    if not _follows_call(lowering):
        lowering.calls.append(Call(len(lowering.list.rows)))
        lowering.list.waits += 1
    lowering.calls[-1].nodes += nodes
    if operation.gives_rows and value.rows != "some":
        lowering.calls[-1].to[value.number] = lowering.new(value)
