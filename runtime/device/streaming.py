"""Layer streaming: all texts go through a model one layer after another, so that its weights are read once.

The device needs room for two layers and one batch. Between two layers the values of other batches wait in the host's
memory. While the device computes a layer, a thread of the host decodes the next one.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from quants import Tensor

from ..arrays import Floats
from ..graph.builder import Graph
from ..graph.placement import Segment, segments
from ..layer import ForwardContext
from .context import DeviceContext
from .executor import Run
from .weights import Weights, on_host

HOST = torch.device("cpu")
Progress = Callable[[int, int], None]  # segments done, of how many


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
