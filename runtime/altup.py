"""Alternating updates (Gemma 3n): several copies of the hidden states, of which each layer computes with one.

Source: transformers `models/gemma3n/modeling_gemma3n.py`; Baykal et al. 2023, "Alternating Updates for Efficient
Transformers". Copies are float32 (copies, tokens, width); the others are predicted before a layer and corrected after.
"""

import numpy as np

from .arrays import Floats
from .embedding import layer_input
from .layer import Layer, Pass

LEAST_SQUARE = np.float32(1e-5)  # of a copy that is scaled


def begin(forward: Pass, x: Floats) -> Floats:
    """The copies of embedded tokens x (tokens, width) before the first layer."""
    ends = forward.global_tensors
    others = ends.need("altup_proj.weight").shape[0]
    begun = [forward.project_expert(ends, "altup_proj", x, i) for i in range(others)]
    return np.stack([x, *(_as_long(x, copy) for copy in begun)])


def end(forward: Pass, copies: Floats) -> Floats:
    """What the copies give together after the last layer: float32 (tokens, width)."""
    first, ends = copies[0], forward.global_tensors
    back = [forward.project_expert(ends, "altup_unembd_proj", copy, i) for i, copy in enumerate(copies[1:])]
    return np.asarray(np.mean([first, *(_as_long(first, copy) for copy in back)], axis=0, dtype=np.float32), np.float32)


def predicted(forward: Pass, layer: Layer, copies: Floats) -> Floats:
    """The copies as they are expected after a layer."""
    raw = forward.project(layer, "altup_predict_coef", _modalities(forward, layer, copies[active(forward)]))
    count = len(copies)
    expected: Floats = copies + np.einsum("tba,atw->btw", raw.reshape(-1, count, count), copies)
    return expected


def active(forward: Pass) -> int:
    """Which copy layers compute with."""
    return int(forward.keys.get("altup.active_idx"))


def corrected(forward: Pass, layer: Layer, expected: Floats, before: Floats, after: Floats) -> Floats:
    """The expected copies, corrected by what a layer made of the active one."""
    share = forward.project(layer, "altup_correct_coef", _modalities(forward, layer, after)) + np.float32(1)
    found: Floats = expected + share.T[:, :, None] * (after - before)
    first = found[active(forward)] * layer.need("altup_correct_scale.weight").float32()
    found[1:] += layer_input(forward, layer, first)
    return found


def _modalities(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """How much a token is of each kind, (tokens, copies)."""
    normed = forward.norm(layer, "altup_router_norm", x)
    normed *= np.float32(1 / x.shape[1])
    return np.tanh(forward.project(layer, "altup_router", normed))


def _as_long(x: Floats, y: Floats) -> Floats:
    """y with the length that x has, for each token."""
    wanted, own = (np.mean(values * values, axis=1, keepdims=True, dtype=np.float32) for values in (x, y))
    return np.asarray(y * np.sqrt(wanted) / np.sqrt(np.maximum(own, LEAST_SQUARE)), np.float32)
