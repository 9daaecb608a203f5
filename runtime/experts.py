"""Mixtures of experts: the router's choice, and the chosen experts' nets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import ops
from .matmul import matmul_experts

if TYPE_CHECKING:
    from .graph import Layer, Pass

Floats = NDArray[np.float32]


def experts(run: Pass, layer: Layer, x: Floats) -> Floats:
    """The weighted sum of each token's chosen experts, and of shared ones: float32 (tokens, width)."""
    from .graph import dense

    chosen, weights = route(run, layer, x)
    out = np.zeros_like(x)
    for expert in np.unique(chosen):
        token, place = np.nonzero(chosen == expert)
        y = _expert(run, layer, x[token], int(expert))
        y *= weights[token, place, None]
        out[token] += y  # a token never chooses an expert twice
    if "ffn_up_shexp.weight" in layer:
        shared = dense(run, layer, x, "_shexp")
        if "ffn_gate_inp_shexp.weight" in layer:
            gate = x @ layer.need("ffn_gate_inp_shexp.weight").float32().reshape(-1, x.shape[1]).T
            shared *= ops.sigmoid(gate)
        out += shared
    return out


def _expert(run: Pass, layer: Layer, x: Floats, expert: int) -> Floats:
    from .graph import activated, gated

    def project(name: str, values: Floats) -> Floats:
        weight = layer.need(f"ffn_{name}_exps.weight")
        if run.model.observe:
            run.model.observe(f"{weight.name}#{expert}", values)
        y = matmul_experts(values, weight, expert)
        bias = layer.array(f"ffn_{name}_exps.bias")
        return y if bias is None else np.add(y, bias[expert], out=y)

    activation = run.model.hyper.activation
    up = project("up", x)
    if not run.model.architecture.block.gated:
        return project("down", activated(activation, up))
    return project("down", gated(activation, project("gate", x), up))


def route(run: Pass, layer: Layer, x: Floats) -> tuple[NDArray[np.intp], Floats]:
    """For each token its experts and their weights: (tokens, used) each."""
    block, hyper = run.model.architecture.block, run.model.hyper
    logits = x @ layer.need("ffn_gate_inp.weight").float32().T
    bias = layer.array("ffn_gate_inp.bias")
    if bias is not None:
        logits += bias
    scores = ops.sigmoid(logits) if block.scoring == "sigmoid" else ops.softmax(logits)
    correction = layer.array("exp_probs_b.bias")
    ranked = scores if correction is None else scores + correction
    chosen = np.argsort(-ranked, axis=1, kind="stable")[:, : hyper.experts_used]
    weights = np.take_along_axis(scores, chosen, axis=1)
    if hyper.normalize_experts:
        weights /= weights.sum(axis=1, keepdims=True)
    return chosen, weights * np.float32(hyper.experts_scale)
