"""The element-wise and row-wise arithmetic of a model, in float32.

Norms return a new array. Activations and gated products work in place, on the array they are given, and return it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels import activations, norms
from .kernels.threads import run, shares

Floats = NDArray[np.float32]

WORTH_A_THREAD = 1 << 15  # values: below this, starting a thread costs more than it saves


def rms_norm(x: Floats, weight: Floats | None, eps: float) -> Floats:
    """x / sqrt(mean(x²) + eps) * weight over the last axis (any number of axes before it); a new float32 array."""
    return _norm(x, lambda rows, out: norms.rms_rows(rows, _weight(weight, x.shape[-1]), eps, out))


def layer_norm(x: Floats, weight: Floats | None, bias: Floats | None, eps: float) -> Floats:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; a new float32 array."""
    width = x.shape[-1]
    shift = _zeros(width) if bias is None else np.ascontiguousarray(bias, np.float32)
    return _norm(x, lambda rows, out: norms.layer_rows(rows, _weight(weight, width), shift, eps, out))


def _norm(x: Floats, kernel: Callable[[Floats, Floats], Any]) -> Floats:
    rows = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    run(lambda start, stop: kernel(rows[start:stop], out[start:stop]), shares(len(rows), _rows(x.shape[-1])))
    return out.reshape(x.shape)


def _rows(width: int) -> int:
    return -(-WORTH_A_THREAD // max(1, width))


def _weight(weight: Floats | None, width: int) -> Floats:
    return _ones(width) if weight is None else np.ascontiguousarray(weight, np.float32)


@cache
def _ones(width: int) -> Floats:
    return np.ones(width, np.float32)


@cache
def _zeros(width: int) -> Floats:
    return np.zeros(width, np.float32)


def softmax(x: Floats) -> Floats:
    """Probabilities over the last axis; a new float32 array. For small arrays, such as the choice of experts."""
    weights: Floats = np.exp(x - x.max(axis=-1, keepdims=True), dtype=np.float32)
    weights /= weights.sum(axis=-1, keepdims=True, dtype=np.float64)
    return weights


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), in place."""
    return _each(x, activations.each_silu)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x), in place."""
    return _each(x, activations.each_sigmoid)


def gelu(x: Floats) -> Floats:
    """x * (1 + erf(x / sqrt 2)) / 2, in place."""
    return _each(x, activations.each_gelu)


def gelu_tanh(x: Floats) -> Floats:
    """The approximation of gelu by a tanh, as `gelu_pytorch_tanh` and `gelu_new`, in place."""
    return _each(x, activations.each_gelu_tanh)


def gelu_quick(x: Floats) -> Floats:
    """x * sigmoid(1.702 x), in place."""
    return _each(x, activations.each_gelu_quick)


def relu(x: Floats) -> Floats:
    """max(x, 0), in place."""
    np.maximum(x, np.float32(0), out=x)
    return x


def relu2(x: Floats) -> Floats:
    """max(x, 0)², in place."""
    relu(x)
    return np.multiply(x, x, out=x)


def softplus(x: Floats) -> Floats:
    """log(1 + e^x), in place."""
    np.logaddexp(np.float32(0), x, out=x)
    return x


def xielu(x: Floats, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Floats:
    """The trained activation of Apertus, in place; the alphas as stored, softplus is applied to them here."""
    positive = np.float32(np.logaddexp(0, alpha_p))
    negative = np.float32(beta + np.logaddexp(0, alpha_n))
    below = (np.expm1(np.minimum(x, np.float32(eps))) - x) * negative
    above = positive * x * x
    np.add(np.where(x > 0, above, below), np.float32(beta) * x, out=x)
    return x


def softcap(x: Floats, cap: float) -> Floats:
    """cap * tanh(x / cap), in place."""
    bound = np.float32(cap)
    return _each(x, lambda part: activations.each_softcap(part, bound))


def silu_gated(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up, in `gate`."""
    return _each(gate, activations.gated_silu, up)


def gelu_gated(gate: Floats, up: Floats) -> Floats:
    """gelu(gate) * up, in `gate`."""
    return _each(gate, activations.gated_gelu, up)


def gelu_tanh_gated(gate: Floats, up: Floats) -> Floats:
    """gelu_tanh(gate) * up, in `gate`."""
    return _each(gate, activations.gated_gelu_tanh, up)


def swiglu_clamped(gate: Floats, up: Floats, limit: float) -> Floats:
    """GPT-OSS's gated unit, in `gate`: a quick gelu of the gate times up + 1, both clamped to `limit`."""
    bound = np.float32(limit)
    return _each(gate, lambda part, other: activations.gated_swiglu_clamped(part, other, bound), up)


def activated(name: str, x: Floats) -> Floats:
    """The activation `name` of x, in place."""
    plain = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "relu2": relu2}
    return plain[name](x)


def gated(name: str, gate: Floats, up: Floats, limit: float) -> Floats:
    """activation(gate) * up, in place; limit: what "swiglu_oai" clamps to."""
    if name == "swiglu_oai":
        return swiglu_clamped(gate, up, limit)
    together = {"silu": silu_gated, "gelu": gelu_gated, "gelu_tanh": gelu_tanh_gated}
    return together[name](gate, up) if name in together else np.multiply(activated(name, gate), up, out=gate)


def _each(x: Floats, kernel: Callable[..., Any], *others: Floats) -> Floats:
    """kernel over flat parts of x (and of arrays of its shape), shared between threads."""
    if not x.flags.c_contiguous:
        changed = _each(np.ascontiguousarray(x), kernel, *others)
        x[...] = changed
        return x
    flat = [x.reshape(-1), *(np.ascontiguousarray(other, np.float32).reshape(-1) for other in others)]
    run(lambda start, stop: kernel(*(part[start:stop] for part in flat)), shares(x.size, WORTH_A_THREAD))
    return x
