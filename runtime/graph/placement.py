"""Decide which of a graph's weights are on a device at once: all, those of two layers, or experts one by one."""

from dataclasses import dataclass

from quants import Tensor

from .builder import Graph

STORED = ("F16", "BF16")  # formats that stay as they are on a device; all others are decoded to float32
WEIGHTS_SHARE = 0.7  # of a device's free memory; activations take the rest


@dataclass(frozen=True)
class Segment:
    """Nodes of a graph that are computed for all batches before the next ones: those of a layer.

    start, stop: the numbers of its first node, and of the node after the last one. tensors: the weights that they read.
    streams_experts: stacked weights are moved to the device one matrix at a time.
    """

    start: int
    stop: int
    tensors: tuple[Tensor, ...]
    streams_experts: bool = False

    @property
    def whole(self) -> tuple[Tensor, ...]:
        """Return the weights that are moved to the device as a whole."""
        return tuple(each for each in self.tensors if not (self.streams_experts and len(each.shape) == 3))

    @property
    def alone(self) -> tuple[Tensor, ...]:
        """Return the stacked weights that are moved one matrix at a time."""
        return tuple(each for each in self.tensors if self.streams_experts and len(each.shape) == 3)

    @property
    def nbytes(self) -> int:
        return sum(map(bytes_on_device, self.whole))


def segments(graph: Graph, memory: int | None = None) -> list[Segment]:
    """Return the layers of a graph as segments, and what comes after the last one.

    memory: bytes for weights on the device; a layer of more streams its experts. None for no limit.
    """
    stops = sorted({value.number + 1 for value in graph.layer_outputs.values()} | {len(graph.nodes)})
    made, start = [], 0
    for stop in stops:
        weights = (each for node in graph.nodes[start:stop] for each in node.operation.weights())
        tensors = tuple({id(each): each for each in weights}.values())
        segment = Segment(start, stop, tensors)
        too_large = memory is not None and segment.nbytes > memory
        made.append(Segment(start, stop, tensors, streams_experts=True) if too_large else segment)
        start = stop
    return made


def bytes_on_device(tensor: Tensor) -> int:
    """Return the bytes that a weight takes on a device."""
    size = 2 if tensor.format.name in STORED else 4
    return size * tensor.rows * tensor.width
