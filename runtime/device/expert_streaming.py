"""Mixtures of experts whose weights do not fit on a device: one expert after another, each for the tokens of all
batches.

Each expert that some token chose is read once a pass; the next one is decoded and moved while one computes. Tokens stay
where they are, and only those of an expert go to the device for it. Each batch's products are those of `experts`, so
that results are the same to the last bit; going once over all batches moves every chosen token's row up and down, which
takes less than reading the experts again for each batch.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from quants import Tensor

from ..graph import operations as op
from ..graph.builder import Node
from ..graph.placement import bytes_on_device, stacked_of
from . import experts
from .executor import Run
from .transfers import wait
from .weights import Weights


def through_experts(runs: Sequence[Run], node: Node, weights: Weights, pool: Executor, ahead: bool) -> None:
    """Compute the node of experts that comes next in all of these runs, whose values may be on the host.

    pool: loads experts. ahead: the next one may be on the device, too.
    """
    operation = node.operation
    assert isinstance(operation, op.Experts)
    parts = [_Part(run, operation) for run in runs]
    stacked = stacked_of(operation)
    used = sorted({expert for part in parts for expert in part.places})
    size = sum(bytes_on_device(each) // each.shape[0] for each in stacked)
    computed, copies = None, weights.copies

    def begin(expert: int) -> Future[list[torch.Tensor]]:
        weights.expect(size)
        return pool.submit(_loaded, weights, stacked, expert, computed)

    pending = begin(used[0]) if used else None
    for expert, following in zip(used, [*used[1:], None], strict=False):
        assert pending is not None
        matrices = pending.result()
        weights.expect(-size)
        for tensor in stacked:
            values = matrices.pop(0)
            weights.put_expert(tensor, expert, values if copies.from_any_thread else copies.send(values))
        if ahead and following is not None:
            pending = begin(following)
        _add_expert(parts, expert)
        computed = weights.copies.side.mark_computing()
        for tensor in stacked:
            weights.drop_expert(tensor, expert)
        if not ahead and following is not None:
            pending = begin(following)
    for part in parts:
        part.run.supply(part.out)


def _add_expert(parts: "Sequence[_Part]", expert: int) -> None:
    """Add an expert's output to all batches; one computes while that of the batch before is moved."""
    waiting: tuple[_Part, torch.Tensor] | None = None
    for part in parts:
        if expert not in part.places:
            continue
        made = part.made(expert)
        if waiting is not None:
            waiting[0].add(expert, waiting[1])
        waiting = part, made
    if waiting is not None:
        waiting[0].add(expert, waiting[1])


def _loaded(weights: Weights, stacked: Sequence[Tensor], expert: int, after: Any) -> list[torch.Tensor]:
    """Return the matrices of an expert, on the device if any thread may move them there. after: the event that frees
    memory for them.
    """
    wait(after)
    load = weights.copies.load if weights.copies.from_any_thread else weights.copies.decoded
    return [load(each, slice(expert * each.shape[1], (expert + 1) * each.shape[1])) for each in stacked]


class _Part:
    """One batch's tokens, and the sum of their experts' outputs. places: by expert, places in `chosen`."""

    def __init__(self, run: Run, operation: op.Experts) -> None:
        self.run, self._operation = run, operation
        self._x, chosen = run.value(operation.x), run.value(operation.chosen)
        self._weights, self._used = run.value(operation.weighted).reshape(-1), chosen.shape[1]
        *_, down = stacked_of(operation)
        self.out = self._x.new_zeros((len(self._x), down.shape[1]))
        order, begins = experts.by_expert(chosen, down.shape[0])
        spans = enumerate(pairwise(begins))
        self.places = {expert: order[begin:end] for expert, (begin, end) in spans if begin < end}

    def made(self, expert: int) -> torch.Tensor:
        """Return an expert's weighted output for the tokens that chose it, on the device."""
        context, layer, suffix = self.run.context, self._operation.layer, self._operation.suffix
        places, device = self.places[expert], context.device
        net: Any = partial(experts.one_expert, context, layer, suffix, expert)
        rows, factors = self._x[places // self._used].to(device), self._weights[places, None].to(device)
        made: torch.Tensor = context.block.weigh_expert(net, rows, factors)
        if context.forward.observe_experts and suffix == "exps":
            context.forward.observe_experts(layer.index, expert, context.host(made))
        return made

    def add(self, expert: int, made: torch.Tensor) -> None:
        """Add what `made` returned to the sum."""
        places, made = self.places[expert], made.to(self.out.device)
        tokens, slots = places // self._used, places % self._used
        if len(torch.unique(tokens)) == len(tokens):
            self.out[tokens] += made
            return
        for slot in torch.unique(slots).tolist():  # a token may choose an expert twice
            self.out[tokens[slots == slot]] += made[slots == slot]
