"""Mixtures of experts on a device: the chosen experts' nets, and steps of the routing."""

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import torch

from ..layer import Layer
from . import activations
from .context import DeviceContext

MIN_SUM = 1e-20  # of weights that are rescaled, as in DeepSeek, against a division by zero


def descending(scores: torch.Tensor) -> torch.Tensor:
    """Return the places of scores (tokens, n), the highest first; of equal ones the first one first."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices


def add_experts(
    context: DeviceContext, layer: Layer, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, suffix: str
) -> torch.Tensor:
    """Return the weighted sum of the outputs of each token's chosen experts (tokens, used) for x (tokens, width)."""
    out, used, places = torch.zeros_like(x), chosen.shape[1], places_of(chosen)
    for expert, own in places.by_expert.items():
        net: Any = partial(one_expert, context, layer, suffix, expert)
        made = context.block.weigh_expert(net, x[own // used], weights.reshape(-1)[own, None])
        if context.forward.observe_experts and suffix == "exps":
            context.forward.observe_experts(layer.index, expert, context.host(made))
        add_rows(out, own, used, made, places.repeated)
    return out


class Places(NamedTuple):
    """Places in `chosen` (tokens, used), row by row, of each expert that is chosen, by ascending expert. repeated: a
    token chooses an expert twice.
    """

    by_expert: dict[int, torch.Tensor]
    repeated: bool


def places_of(chosen: torch.Tensor) -> Places:
    """Return where each expert is chosen. The device is waited for once."""
    numbers, order = torch.sort(chosen.reshape(-1), stable=True)
    tokens = order // chosen.shape[1]
    twice = ((numbers[1:] == numbers[:-1]) & (tokens[1:] == tokens[:-1])).any()
    *sorted_numbers, repeated = torch.cat([numbers, twice[None].to(numbers.dtype)]).tolist()
    counts = Counter(sorted_numbers)
    return Places(dict(zip(counts, order.split([*counts.values()]), strict=True)), bool(repeated))


def add_rows(out: torch.Tensor, places: torch.Tensor, used: int, made: torch.Tensor, repeated: bool) -> None:
    """Add an expert's rows to those of their tokens, in an order that is the same in each run.

    repeated: a token may be there twice.
    """
    tokens = places // used
    if not repeated:
        out[tokens] = out[tokens] + made
        return
    for slot in range(used):
        own = places % used == slot
        out[tokens[own]] = out[tokens[own]] + made[own]


def one_expert(context: DeviceContext, layer: Layer, suffix: str, expert: int, x: torch.Tensor) -> torch.Tensor:
    """Return an expert's output for x (tokens, width)."""

    def project(name: str, values: torch.Tensor) -> torch.Tensor:
        return context.project_expert(layer, f"ffn_{name}_{suffix}", values, expert)

    activation, limit = context.hparams.activation, context.hparams.activation_limit
    within = activations.gated_of_clamped if context.block.clamps_gate_first else activations.gated_within
    if "ffn_gate_up_exps.weight" in layer:
        gate, up = project("gate_up", x).chunk(2, dim=1)
    elif context.block.gated:
        up, gate = project("up", x), project("gate", x)
    else:
        return project("down", activations.ACTIVATIONS[activation](project("up", x)))
    if activation == "situ":
        return project("down", activations.situ(gate, up, *context.hparams.situ))
    if bound := context.forward.numbers(layer).experts_limit:
        return project("down", within(activation, gate, up, bound))
    return project("down", activations.gated(activation, gate, up, limit))


def sparse_mixer(logits: torch.Tensor, used: int, jitter: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best expert, then the best of the others, and so on, and their weights (Liu et al. 2024, "GRIN")."""
    left, chosen, weights = logits.clone(), [], []
    for _ in range(used):
        top, best = left.max(dim=1, keepdim=True)
        far = (top - logits) / torch.maximum(logits.abs(), top) > 2 * jitter
        near = torch.softmax(left.masked_fill(far, -torch.inf), dim=1)
        chosen.append(best)
        weights.append(near.gather(1, best))
        left = left.scatter(1, best, -torch.inf)
    return torch.cat(chosen, dim=1), torch.cat(weights, dim=1)
