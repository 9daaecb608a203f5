"""Decide which of a graph's weights are on a device at once: all, those of two layers or of one, or experts one by one.

What a device holds is counted in bytes of weights and of the values of one batch, with what operations need on their
way.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from quants import Tensor
from quants.errors import OptionError

from . import operations as op
from .builder import Graph, Node

STORED = ("F16", "BF16")  # formats that stay as they are on a device; all others are decoded to float32
SHARE = 0.9  # of a device's free memory that is used: allocators waste some
SCORES = 1 << 26  # numbers of attention's scores at a time
SCORE_COPIES = 4  # of scores while they are masked and exponentiated
WIDENED = 1 << 27  # numbers of a weight that are widened to float32 at a time
OUTPUTS = 1 << 28  # numbers of experts' outputs at a time
SCRATCH = 2  # times an operation's inputs and output, for what it makes on the way
WORKSPACE = 1 << 25  # bytes of a device's libraries
TOKENS = 8192  # that are computed together at most on a GPU: more are no faster
FEW_TOKENS = 2048  # fewer leave a device waiting for weights


@dataclass(frozen=True)
class Segment:
    """Nodes of a graph that are computed for all batches before the next ones: those of a layer.

    name: of its layer, for messages. start, stop: the numbers of its first node, and of the node after the last one.
    tensors: the weights that they read; stacked: those of experts. streams_experts: stacked weights are moved to the
    device one matrix at a time.
    """

    name: str
    start: int
    stop: int
    tensors: tuple[Tensor, ...]
    stacked: tuple[Tensor, ...] = ()
    streams_experts: bool = False

    @cached_property
    def whole(self) -> tuple[Tensor, ...]:
        """Return the weights that are moved to the device as a whole."""
        alone = {id(each) for each in self.stacked} if self.streams_experts else set()
        return tuple(each for each in self.tensors if id(each) not in alone)

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes of the weights that are moved as a whole."""
        return sum(map(bytes_on_device, self.whole))

    @cached_property
    def expert_bytes(self) -> int:
        """Return the bytes of one expert, 0 if none is moved alone."""
        return sum(bytes_on_device(each) // each.shape[0] for each in self.stacked) if self.streams_experts else 0

    @property
    def alone(self) -> tuple[Tensor, ...]:
        """Return the stacked weights that are moved one matrix at a time."""
        return self.stacked if self.streams_experts else ()

    @property
    def most(self) -> int:
        """Return the bytes of weights while the segment is computed: the next expert is moved ahead."""
        return self.nbytes + 2 * self.expert_bytes

    @property
    def least(self) -> int:
        """Return the bytes of weights that must be there at once."""
        return self.nbytes + self.expert_bytes


@dataclass(frozen=True)
class Placement:
    """Segments, and the bytes of weights that may be on a device at once; None for no limit."""

    segments: tuple[Segment, ...]
    room: int | None

    def loads_ahead(self, number: int) -> bool:
        """Return whether the segment after this one fits next to it."""
        here, after = self.segments[number : number + 2]
        return self.room is None or here.most + after.nbytes <= self.room

    def experts_ahead(self, number: int) -> bool:
        """Return whether two experts of a segment fit at once."""
        return self.room is None or self.segments[number].most <= self.room


def segments(graph: Graph, memory: int | None = None) -> list[Segment]:
    """Return the layers of a graph as segments, and what comes after the last one.

    memory: bytes for weights on the device; a layer of more streams its experts. None for no limit.
    """
    stops = {value.number + 1: f"layer {index}" for index, value in graph.layer_outputs.items()}
    stops = {len(graph.nodes): "the output"} | stops
    made, start = [], 0
    for stop in sorted(stops):
        nodes = graph.nodes[start:stop]
        tensors = tuple({id(each): each for node in nodes for each in node.operation.weights()}.values())
        stacked = tuple({id(each): each for node in nodes for each in stacked_weights(node)}.values())
        segment = Segment(stops[stop], start, stop, tensors, stacked)
        too_large = memory is not None and segment.nbytes > memory
        made.append(replace(segment, streams_experts=True) if too_large and stacked else segment)
        start = stop
    return made


def weights_of(graph: Graph) -> list[Tensor]:
    """Return all weights that a graph reads, each once."""
    return [*{id(each): each for node in graph.nodes for each in node.operation.weights()}.values()]


def stacked_weights(node: Node) -> tuple[Tensor, ...]:
    """Return the stacked weights of a node's experts; none of other nodes."""
    return stacked_of(node.operation) if isinstance(node.operation, op.Experts) else ()


def stacked_of(operation: op.Experts) -> tuple[Tensor, ...]:
    """Return the stacked weights of experts, the one of their output last."""
    return tuple(each for each in operation.weights() if len(each.shape) == 3)


def placed(graph: Graph, memory: int | None = None, values: int = 0) -> Placement:
    """Return what is on the device at once.

    memory: bytes of the device, None for no limit. values: bytes of a batch's values. Raises OptionError for a layer
    that does not fit, with the least memory that is enough.
    """
    if memory is None:
        return Placement(tuple(segments(graph)), None)
    room = memory - values
    parts = segments(graph, room)
    widest = max(parts, key=lambda each: each.least)
    if widest.least > room:
        what = "the weights and one expert" if widest.streams_experts else "the weights"
        enough = max(part.least for part in segments(graph, 0)) + values
        needed = f"{what} of {widest.name} take {widest.least:,} bytes, a batch's values {values:,}"
        raise OptionError(f"a device's memory of {memory:,} bytes is too small: {needed}", f"{enough:,} are enough")
    return Placement(tuple(parts), room)


def tokens_at_once(
    graph: Graph, length: int, memory: tuple[int, int], most: int, weights: Iterable[Tensor] = ()
) -> int:
    """Return how many tokens, of whole texts of this length, are best computed together; at most `most` texts.

    memory: bytes of the device for weights that stay, and for those of a pass layer by layer. weights: that are needed
    besides the graph's. Weights that fit stay on the device, else those of two layers, of one, or one expert after
    another: the first of these that leaves room for FEW_TOKENS. At least one text; `placed` says if its values do not
    fit.
    """
    parts, alone = segments(graph), segments(graph, 0)
    pairs = (here.nbytes + after.nbytes for here, after in pairwise(parts))
    choices = [bytes_of([*weights_of(graph), *weights]), max(pairs, default=0), max(part.nbytes for part in parts)]
    choices += [max(part.most for part in alone), max(part.least for part in alone)]
    best = 1
    for number, taken in enumerate(choices):
        count, limit = most, memory[min(number, 1)]
        while count > 1 and taken + bytes_of_values(graph, count, length) > limit:
            count -= max(1, count // 8)
        if count * length >= FEW_TOKENS:
            return count * length
        best = max(best, count)
    return best * length


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that weights take on a device, each counted once."""
    return sum(map(bytes_on_device, {id(each): each for each in tensors}.values()))


def bytes_on_device(tensor: Tensor) -> int:
    """Return the bytes that a weight takes on a device."""
    of_one = 2 if tensor.format.name in STORED else 4
    return of_one * tensor.rows * tensor.width


def bytes_of_values(graph: Graph, texts: int, length: int) -> int:
    """Return an estimate of the bytes of values on a device at most, while `texts` texts of `length` tokens are
    computed together: values that are read later, and what operations make on their way.
    """
    tokens, live = texts * length, 0
    widths, most = dict[int, int](), 0
    for node, forgotten in zip(graph.nodes, graph.memory.forgotten, strict=True):
        widths[node.value.number] = 0 if node.operation.is_view else node.value.width
        live += widths[node.value.number]
        most = max(most, 4 * live * tokens + _scratch(node, tokens, length))
        live -= sum(widths.pop(number, 0) for number in forgotten)
    return most + WORKSPACE


def bytes_between(graph: Graph, tokens: int) -> int:
    """Return the bytes of values that wait between two layers at most."""
    stops = [part.stop for part in segments(graph)]
    stops += [number for node in graph.nodes if stacked_weights(node) for number in (node.value.number,)]
    widths = [sum(graph.nodes[each].value.width for each in read_after(graph, stop)) for stop in stops]
    shared = sum(2 * node.operation.k.width for node in graph.nodes if isinstance(node.operation, op.Attention))
    sharing = any(isinstance(node.operation, op.SharedAttention) for node in graph.nodes)
    return 4 * tokens * (max(widths) + (shared if sharing else 0))


def read_after(graph: Graph, stop: int) -> frozenset[int]:
    """Return the numbers of the values before node `stop` that it or later ones read, and of the result."""
    numbers = {value.number for node in graph.nodes[stop:] for value in node.operation.inputs()}
    return frozenset(number for number in numbers | {graph.output.number} if number < stop)


def _scratch(node: Node, tokens: int, length: int) -> int:
    """Return the bytes that an operation makes on the way to its result."""
    operation = node.operation
    inputs = [value.width for value in operation.inputs()]
    made = 4 * tokens * SCRATCH * max([node.value.width, *inputs])
    widened = [
        each.rows * each.width // (each.shape[0] if isinstance(operation, op.Experts) else 1)
        for each in operation.weights()
        if each.format.name in STORED
    ]
    if isinstance(operation, op.Experts):
        made += 4 * tokens * sum(each.shape[1] for each in stacked_weights(node))
        made += 4 * min(OUTPUTS, tokens * operation.chosen.width * node.value.width)
    if (queries := getattr(operation, "q", None)) is not None:
        made += 4 * SCORE_COPIES * min(SCORES, tokens * length * queries.shape[0])
    return made + 4 * min(WIDENED, max(widened, default=0))
