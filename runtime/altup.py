"""Alternating updates (Gemma 3n): several copies of the hidden states, of which each layer computes with one.

Reference: transformers `models/gemma3n/modeling_gemma3n.py`; Baykal et al. 2023, "Alternating Updates for Efficient
Transformers". Copies are float32 (copies, tokens, width); the others are predicted before a layer and corrected after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.hyper import Keys

from .matmul import matmul_experts
from .per_layer import layer_input

if TYPE_CHECKING:
    from .graph import Layer, Pass

Floats = NDArray[np.float32]

LEAST_SQUARE = np.float32(1e-5)  # of a copy that is scaled


def decode(run: Pass, x: Floats) -> Floats:
    """Through all layers: float32 (tokens, width)."""
    copies = np.stack([x, *(_as_long(x, _projected(run, "altup_proj", x, i)) for i in range(_others(run)))])
    active = int(Keys(run.model.architecture.name, run.model.metadata).get("altup.active_idx", 0))
    for index, layer in enumerate(run.model.layers):
        copies = run.finite(layer.prefix, _through(run, index, layer, copies, active))
    first = copies[0]
    back = [_as_long(first, _projected(run, "altup_unembd_proj", copies[i + 1], i)) for i in range(_others(run))]
    whole: Floats = np.mean(np.stack([first, *back]), axis=0, dtype=np.float32)
    return whole


def _through(run: Pass, index: int, layer: Layer, copies: Floats, active: int) -> Floats:
    from .graph import attention, feed_forward

    raw = run.project(layer, "altup_predict_coef", _modalities(run, layer, copies[active]))
    count = len(copies)
    predicted = copies + np.einsum("tba,atw->btw", raw.reshape(-1, count, count), copies)

    now = predicted[active]
    normed = run.norm(layer, "attn_norm", now)
    low = run.project(layer, "laurel_r", run.project(layer, "laurel_l", normed))
    laurel = normed + run.norm(layer, "laurel_post_norm", low)
    mixed = run.norm(layer, "post_attention_norm", attention(run, index, layer, normed))
    x = (now + mixed + laurel) / np.float32(2**0.5)
    fed = feed_forward(run, layer, run.norm(layer, "ffn_norm", x), x)
    x = x + run.norm(layer, "post_ffw_norm", fed)

    share = run.project(layer, "altup_correct_coef", _modalities(run, layer, x)) + np.float32(1)
    corrected: Floats = predicted + share.T[:, :, None] * (x - now)
    first = corrected[active] * layer.need("altup_correct_scale.weight").float32()
    corrected[1:] += layer_input(run, index, layer, first)
    return corrected


def _modalities(run: Pass, layer: Layer, x: Floats) -> Floats:
    """How much a token is of each kind, (tokens, copies)."""
    normed = run.norm(layer, "altup_router_norm", x)
    normed *= np.float32(1 / x.shape[1])
    return np.tanh(run.project(layer, "altup_router", normed))


def _others(run: Pass) -> int:
    return run.model.whole.need("altup_proj.weight").shape[0]


def _projected(run: Pass, name: str, x: Floats, number: int) -> Floats:
    weight = run.model.whole.need(f"{name}.weight")
    if run.model.observe:
        run.model.observe(weight.name, x, number, weight.shape[0])
    return matmul_experts(np.ascontiguousarray(x), weight, number)


def _as_long(x: Floats, y: Floats) -> Floats:
    """y with the length that x has, for each token."""
    wanted, found = (np.mean(values * values, axis=1, keepdims=True, dtype=np.float32) for values in (x, y))
    scaled: Floats = y * np.sqrt(wanted) / np.sqrt(np.maximum(found, LEAST_SQUARE))
    return scaled
