"""Layer streaming: all texts go through a model one layer after another, so that its weights are read once.

A device holds the weights of two layers and one batch of texts; of one layer, if two do not fit; of one expert after
another, if a layer does not fit (see `runtime.graph.placement`). Between two layers the values of all batches wait in
the host's memory. While a layer computes, a thread of the host decodes the next one, which is copied at the same time,
as are the values of the next batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from quants import Tensor

from ..ahead import Progress
from ..arrays import Floats
from ..graph.builder import Graph
from ..graph.placement import Placement, Segment, bytes_of_values, bytes_on_device, placed, read_after, stacked_weights
from ..layer import ForwardContext
from .checkpoint import Checkpoint
from .context import DeviceContext
from .executor import Hook, Run
from .expert_streaming import through_experts
from .importance import observer_of
from .kept import exchange
from .transfers import StateCopies, wait
from .weights import Weights

Loaded = list[tuple[Tensor, torch.Tensor]]


@dataclass(frozen=True)
class StreamOptions:
    """How batches are streamed.

    memory: bytes of the device, for weights and the values of a batch; None for no limit. progress: called after each
    layer with (layers done, of how many). checkpoint: where the pass is kept, so that a killed one can go on. hooks: as
    of `runtime.graph.text.run`, for a single batch.
    """

    memory: int | None = None
    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    hooks: Mapping[int, Hook] | None = None


def stream(
    graph: Graph,
    batches: Sequence[tuple[ForwardContext, Floats]],
    weights: Weights,
    options: StreamOptions | None = None,
) -> Iterator[Floats]:
    """Yield the graph's result for each batch, on the host: float32.

    batches: passes with their inputs (tokens, width). weights: of the device; what was there before stays if there is
    room. Raises ModelError if a layer's output is not finite, OptionError if a layer does not fit, FileError for a
    checkpoint that cannot be used.
    """
    options = options or StreamOptions()
    if not batches:
        return
    most = max((forward for forward, _ in batches), key=lambda forward: forward.texts * forward.length)
    values = bytes_of_values(graph, most.texts, most.length)
    plan = _with_room(graph, weights, options.memory, values)
    weights.copies.threads = most.threads
    with torch.inference_mode():
        runs = _begun(graph, batches, weights, options)
        before = weights.kept()
        try:
            _Pass(runs, plan, weights, options).run()
        finally:
            weights.keep_only(before)
    for run in runs:
        result: Floats = run.result.cpu().numpy()
        run.values.clear()
        yield result


def _begun(
    graph: Graph, batches: Sequence[tuple[ForwardContext, Floats]], weights: Weights, options: StreamOptions
) -> list[Run]:
    """Return runs before their first layer; those over texts of one shape share their angles and masks."""
    runs, alike = list[Run](), dict[tuple[int, int], DeviceContext]()
    for forward, x in batches:
        context = DeviceContext(forward, weights)
        if not forward.images:
            context.share(alike.setdefault((forward.texts, forward.length), context))
        runs.append(Run(graph, context))
        runs[-1].supply(torch.from_numpy(x), options.hooks)
    return runs


def _with_room(graph: Graph, weights: Weights, memory: int | None, values: int) -> Placement:
    """Return what is on the device at once. What was there before is released if it stands in the way."""
    plan = placed(graph, memory, values)
    if plan.room is not None and weights.nbytes:
        numbers = range(len(plan.segments) - 1)
        left = Placement(plan.segments, plan.room - weights.nbytes)
        if plan.room < weights.nbytes + max(each.most for each in plan.segments) or any(
            plan.loads_ahead(number) and not left.loads_ahead(number) for number in numbers
        ):
            weights.keep_only(())
        else:
            plan = left
    return plan


class _Pass:
    """A pass of all batches, segment by segment."""

    def __init__(self, runs: Sequence[Run], plan: Placement, weights: Weights, options: StreamOptions) -> None:
        self.runs, self.plan, self.weights, self.options = runs, plan, weights, options
        self.states = StateCopies(weights.device)
        self.importance = observer_of(runs[0].context.forward.observe)

    def run(self) -> None:
        """Compute all segments, from the beginning or from the checkpoint's."""
        parts, checkpoint = self.plan.segments, self.options.checkpoint
        first = 0 if checkpoint is None else checkpoint.restore(self.runs)
        if self.options.progress is not None and first:
            self.options.progress(first, len(parts))
        with ThreadPoolExecutor(1, "decode weights") as pool:
            pending, computed = self._begin_loading(pool, first, None, None), None
            for number in range(first, len(parts)):
                segment, before = parts[number], self.weights.kept()
                is_there, loaded = pending
                self._put_loaded(is_there, loaded, computed)
                if number + 1 < len(parts):
                    pending = self._begin_loading(pool, number + 1, number, computed)
                self._through(segment, pool, self.plan.experts_ahead(number))
                computed = self.weights.copies.side.mark_computing()
                self.weights.keep_only(before)
                self._end_segment(number, segment)

    def _begin_loading(
        self, pool: ThreadPoolExecutor, number: int, current: int | None, after: Any
    ) -> "tuple[bool, Future[Loaded]]":
        """Begin to load a segment's weights: to the device if they fit next to those of the current segment, else
        decode them only.

        after: the event that frees the memory of the segment before the current one.
        """
        copies, segment = self.weights.copies, self.plan.segments[number]
        ahead = current is None or self.plan.loads_ahead(current)
        direct = ahead and copies.from_any_thread
        wanted = [each for each in segment.whole if not self.weights.has(each)]

        if direct:
            self.weights.expect(sum(map(_bytes_as_loaded, wanted)))

        def load() -> Loaded:
            made = copies.load if direct else copies.decoded
            if direct:
                wait(after)
            return [(each, made(each, as_float32=_is_array(each))) for each in wanted]

        return direct, pool.submit(load)

    def _put_loaded(self, is_there: bool, future: "Future[Loaded]", after: Any) -> None:
        """Keep weights that were loaded, after moving those that were only decoded. after: the event that frees memory
        for these.
        """
        loaded = future.result()
        if not is_there:
            wait(after)
        while loaded:
            tensor, values = loaded.pop()  # one after another: decoded values need not stay
            if is_there:
                self.weights.expect(-values.nbytes)
            self.weights.put(tensor, values if is_there else self.weights.copies.send(values))

    def _through(self, segment: Segment, pool: ThreadPoolExecutor, ahead: bool) -> None:
        """Compute a segment for all batches."""
        for number, node in enumerate(self.runs[0].graph.nodes[segment.start : segment.stop], segment.start):
            if segment.streams_experts and stacked_weights(node):
                self._advance(number)
                through_experts(self.runs, node, self.weights, pool, ahead)
        self._advance(segment.stop)

    def _advance(self, stop: int) -> None:
        """Compute the nodes up to `stop` for all batches, of which one is on the device and the next on its way."""
        runs, states, graph = self.runs, self.states, self.runs[0].graph
        if runs[0].next == stop:
            return
        later = read_after(graph, stop)
        exchange(runs[0], states.up)
        for number, run in enumerate(runs):
            states.arrived()
            if number + 1 < len(runs):
                exchange(runs[number + 1], states.up)
            run.advance(stop, self.options.hooks)
            for forgotten in run.values.keys() - later:
                del run.values[forgotten]
            if len(runs) > 1:
                exchange(run, states.down)
        if len(runs) > 1:
            states.finish()
            for run in runs:
                run.check_finite()

    def _end_segment(self, number: int, segment: Segment) -> None:
        done, parts = number + 1, self.plan.segments
        if self.importance is not None:
            self.importance.rest()
        if self.options.checkpoint is not None and done < len(parts):
            self.options.checkpoint.write(self.runs, done)
        if self.options.progress is not None:
            self.options.progress(done, len(parts))


def _is_array(tensor: Tensor) -> bool:
    """Return whether a weight is read in float32 whatever its format: a norm, or a bias."""
    return len(tensor.shape) == 1


def _bytes_as_loaded(tensor: Tensor) -> int:
    return 4 * tensor.size if _is_array(tensor) else bytes_on_device(tensor)
