"""Mixtures of experts: steps of the routing (see `graph.net.route`), and the chosen experts' nets."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from quants.errors import ModelError

from . import ops
from .arrays import Floats
from .kernels.sums import add_rows
from .kernels.threads import share_out
from .layer import ForwardContext, Layer
from .products.matmul import Inputs

Chosen = NDArray[np.intp]  # numbers of experts, (tokens, used)
Choice = tuple[Chosen, Floats]

ADDED = 1 << 16  # numbers for which a thread pays off
MIN_SUM = np.float32(1e-20)  # of weights that are rescaled, as in DeepSeek, against a division by zero


def add_experts(forward: ForwardContext, layer: Layer, latent: Floats, choice: Choice, suffix: str) -> Floats:
    """Return the weighted sum of the outputs of each token's chosen experts for latent (tokens, width)."""
    chosen, weights = choice
    out, weigh_expert = np.zeros_like(latent), forward.block.weigh_expert
    order = np.argsort(chosen, axis=None, kind="stable")
    ids, begins = np.unique(chosen.reshape(-1)[order], return_index=True)
    for expert, places in zip(ids, np.split(order, begins[1:]), strict=True):
        tokens = places // chosen.shape[1]
        net = partial(_expert, forward, layer, suffix, int(expert))
        made = weigh_expert(net, latent[tokens], weights.reshape(-1)[places, None])
        if forward.observe_experts and suffix == "exps":
            forward.observe_experts(layer.index, int(expert), made)
        share_out(partial(add_rows, out, tokens, made), len(tokens), ADDED // out.shape[1] + 1, forward.threads)
    return out


def _expert(forward: ForwardContext, layer: Layer, suffix: str, expert: int, x: Floats) -> Floats:
    def project(name: str, values: Floats | Inputs) -> Floats:
        return forward.project_expert(layer, f"ffn_{name}_{suffix}", values, expert)

    activation, limit = forward.hparams.activation, forward.hparams.activation_limit
    gated_within = ops.gated_of_clamped if forward.block.clamps_gate_first else ops.gated_within
    if "ffn_gate_up_exps.weight" in layer:
        gate, up = (np.ascontiguousarray(half) for half in np.split(project("gate_up", x), 2, axis=1))
    elif forward.block.gated:
        inputs = forward.inputs(x)
        up, gate = project("up", inputs), project("gate", inputs)
    else:
        return project("down", ops.activated(activation, project("up", x), forward.threads))
    if activation == "situ":
        return project("down", ops.situ(gate, up, *forward.hparams.situ, forward.threads))
    if bound := forward.numbers(layer).experts_limit:
        return project("down", gated_within(activation, gate, up, bound, forward.threads))
    return project("down", ops.gated(activation, gate, up, limit, forward.threads))


def of_tokens(forward: ForwardContext, layer: Layer, count: int) -> Chosen:
    """Return the experts that a table lists for each token's id, (count, used), of the last positions of each text.

    Raises ModelError for a pass that does not know its tokens.
    """
    if forward.tokens is None:
        raise ModelError(f"{layer.prefix}* chooses experts by token ids, which are unknown here")
    ids = forward.tokens.reshape(forward.texts, -1)[:, -(count // forward.texts) :]
    table, count = layer.need("ffn_gate_tid2eid.weight"), layer.need("ffn_gate_inp.weight").shape[0]
    chosen = table.elements().reshape(table.shape)[ids.reshape(-1)].astype(np.intp)
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < count:
        raise ModelError(f"{table.name!r} names expert {chosen.max()}, or a negative one; there are {count}")
    return chosen


def within_best_groups(ranked: Floats, groups: int, used: int, pairs: bool) -> Floats:
    """Return scores (tokens, experts) with -inf outside each token's best groups of neighbouring experts.

    A group counts as its best expert (DeepSeek V2) or, with pairs, as the sum of its best two (V3, whose routers have
    a correction bias).
    """
    each = ranked.reshape(len(ranked), groups, -1)
    best = np.sort(each, axis=2)[:, :, -2 if pairs else -1 :].sum(axis=2)
    kept = np.argsort(-best, axis=1, kind="stable")[:, :used]
    allowed = np.zeros(best.shape, np.bool_)
    np.put_along_axis(allowed, kept, True, axis=1)
    return np.where(allowed[:, :, None], each, np.float32(-np.inf)).reshape(ranked.shape)


def sparse_mixer(logits: Floats, used: int, jitter: float) -> Choice:
    """Return the best expert, then the best of the others, and so on; the weight of each is its softmax over the
    remaining experts whose logit is relatively near (Liu et al. 2024, "GRIN"; evaluation mode of Phi-3.5-MoE).
    """
    left = logits.copy()
    chosen = np.empty((len(logits), used), np.intp)
    weights = np.empty((len(logits), used), np.float32)
    for place in range(used):
        top = left.max(axis=1, keepdims=True)
        far = (top - logits) / np.maximum(np.abs(logits), top) > 2 * jitter
        best = left.argmax(axis=1)[:, None]
        near = ops.softmax(np.where(far, np.float32(-np.inf), left))
        chosen[:, place], weights[:, place] = best[:, 0], np.take_along_axis(near, best, axis=1)[:, 0]
        np.put_along_axis(left, best, np.float32(-np.inf), axis=1)
    return chosen, weights
