"""Mixtures of experts on a device: the chosen experts' nets, and steps of the routing."""

import itertools
from functools import partial
from typing import Any

import torch

from ..layer import Layer
from . import activations
from .context import DeviceContext

OUTPUTS = 1 << 28  # numbers of experts' outputs at a time: 1 GB
MIN_SUM = 1e-20  # of weights that are rescaled, as in DeepSeek, against a division by zero


def descending(scores: torch.Tensor) -> torch.Tensor:
    """Return the places of scores (tokens, n), the highest first; of equal ones the first one first."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices


def add_experts(
    context: DeviceContext, layer: Layer, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, suffix: str
) -> torch.Tensor:
    """Return the weighted sum of the outputs of each token's chosen experts (tokens, used) for x (tokens, width).

    The output of each choice has a place of its own, and a token's are added by ascending expert, so that sums are the
    same in each run, and where one expert after another is moved to the device. It is waited for once: for the numbers
    of tokens.
    """
    used, width = chosen.shape[1], _width(layer, suffix)
    step = max(1, OUTPUTS // (used * width))
    if len(x) > step:
        parts = zip(x.split(step), chosen.split(step), weights.split(step), strict=True)
        return torch.cat([add_experts(context, layer, *part, suffix) for part in parts])
    order, begins = by_expert(chosen, _count(layer, suffix))
    tokens, shares = order // used, weights.reshape(-1)[order, None]
    ranks = torch.sort(torch.sort(chosen, dim=1, stable=True).indices, dim=1).indices  # of experts among a token's
    places = tokens * used + ranks.reshape(-1)[order]
    outputs = x.new_empty((len(order), width))
    for expert, (begin, end) in enumerate(itertools.pairwise(begins)):
        if begin == end:
            continue
        net: Any = partial(one_expert, context, layer, suffix, expert)
        made = context.block.weigh_expert(net, x[tokens[begin:end]], shares[begin:end])
        if context.forward.observe_experts and suffix == "exps":
            context.forward.observe_experts(layer.index, expert, context.host(made))
        outputs[places[begin:end]] = made
    out, *others = outputs.reshape(len(x), used, width).unbind(dim=1)
    for each in others:
        out = out + each
    return out


def by_expert(chosen: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
    """Return the places in `chosen` (tokens, used), row by row, in the order of experts, and where each of `count`
    experts begins, with the end.
    """
    numbers, order = torch.sort(chosen.reshape(-1), stable=True)
    begins: list[int] = torch.searchsorted(numbers, torch.arange(count + 1, device=chosen.device)).tolist()
    return order, begins


def _count(layer: Layer, suffix: str) -> int:
    return layer.need(f"ffn_down_{suffix}.weight").shape[0]


def _width(layer: Layer, suffix: str) -> int:
    return layer.need(f"ffn_down_{suffix}.weight").shape[1]


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
