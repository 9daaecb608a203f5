"""Layer streaming: all texts go through a model one layer after another, so that its weights are read once.

The device needs room for two layers and one batch. Between two layers the values of other batches wait in the host's
memory. While the device computes a layer, a thread of the host decodes the next one.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from quants import Tensor

from ..arrays import Floats
from ..graph.builder import Graph
from ..layer import ForwardContext
from .context import DeviceContext
from .executor import Run
from .weights import Weights, bytes_on_device, on_host

HOST = torch.device("cpu")
Progress = Callable[[int, int], None]  # segments done, of how many


@dataclass(frozen=True)
class Segment:
    """Nodes of a graph that are computed for all batches before the next ones: those of a layer.

    stop: the number of the node after the last one. tensors: the weights that they read. streams_experts: stacked
    weights are moved to the device one matrix at a time.
    """

    stop: int
    tensors: tuple[Tensor, ...]
    streams_experts: bool = False

    @property
    def whole(self) -> tuple[Tensor, ...]:
        """Return the weights that are moved to the device as a whole."""
        return tuple(each for each in self.tensors if not (self.streams_experts and len(each.shape) == 3))

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
        segment = Segment(stop, tensors)
        too_large = memory is not None and segment.nbytes > memory
        made.append(Segment(stop, tensors, streams_experts=True) if too_large else segment)
        start = stop
    return made


def stream(
    graph: Graph,
    batches: Sequence[tuple[ForwardContext, Floats]],
    weights: Weights,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Floats]:
    """Yield the graph's result for each batch, on the host: float32.

    batches: passes with their inputs (tokens, width). weights: of the device; what was there before stays. memory:
    bytes for weights that are added, two layers of which may be there at once. Raises ModelError if a layer's output is
    not finite.
    """
    parts = segments(graph, None if memory is None else memory // 2)
    with torch.inference_mode(), ThreadPoolExecutor(1, "decode weights") as pool:
        runs = [Run(graph, DeviceContext(forward, weights), torch.from_numpy(x)) for forward, x in batches]
        pending = pool.submit(_decoded, parts[0], weights)
        for number, segment in enumerate(parts):
            moved = _moved(pending, weights)
            if number + 1 < len(parts):
                pending = pool.submit(_decoded, parts[number + 1], weights)
            weights.streams_experts = segment.streams_experts
            for run in runs:
                run.move(weights.device)
                run.advance(segment.stop)
                if len(runs) > 1:
                    run.move(HOST)
            weights.drop(moved)
            if progress is not None:
                progress(number + 1, len(parts))
        weights.streams_experts = False
        for run in runs:
            yield run.result.cpu().numpy()


def _decoded(segment: Segment, weights: Weights) -> list[tuple[Tensor, torch.Tensor]]:
    """Return the weights of a segment that are not on the device yet, in the host's memory."""
    return [(each, on_host(each)) for each in segment.whole if not weights.has(each)]


def _moved(pending: "Future[list[tuple[Tensor, torch.Tensor]]]", weights: Weights) -> list[Tensor]:
    """Move decoded weights to the device; return which."""
    decoded = pending.result()
    for tensor, values in decoded:
        weights.put(tensor, values)
    return [tensor for tensor, _ in decoded]
