"""The element-wise and row-wise arithmetic of a model, in float32, on as many threads as the last argument says.

Norms return a new array. Activations and gated products work in place, on the array they are given, and return it.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from .arrays import Floats
from .kernels import activations, norms
from .kernels.threads import share_out

VALUES_PER_THREAD = 1 << 15  # below this, starting a thread costs more than it saves


def rms_norm(x: Floats, weight: Floats | None, eps: float, threads: int = 1) -> Floats:
    """Return x / sqrt(mean(x²) + eps) * weight over the last axis (any number of axes before it); a new float32
    array.
    """
    return _norm(norms.rms_rows, x, (_row(weight, x, 1), eps), threads)


def layer_norm(x: Floats, weight: Floats | None, bias: Floats | None, eps: float, threads: int = 1) -> Floats:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last axis; a new float32 array."""
    return _norm(norms.layer_rows, x, (_row(weight, x, 1), _row(bias, x, 0), eps), threads)


def _norm(kernel: Callable[..., Any], x: Floats, numbers: tuple[Any, ...], threads: int) -> Floats:
    rows = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    min_share = -(-VALUES_PER_THREAD // max(1, x.shape[-1]))
    share_out(lambda start, stop: kernel(rows[start:stop], *numbers, out[start:stop]), len(rows), min_share, threads)
    return out.reshape(x.shape)


def _row(given: Floats | None, x: Floats, value: int) -> Floats:
    return _full(x.shape[-1], value) if given is None else np.ascontiguousarray(given, np.float32)


@cache
def _full(width: int, value: int) -> Floats:
    return np.full(width, value, np.float32)


def softmax(x: Floats) -> Floats:
    """Return probabilities over the last axis; a new float32 array. For small arrays, such as the choice of experts."""
    weights: Floats = np.exp(x - x.max(axis=-1, keepdims=True), dtype=np.float32)
    weights /= weights.sum(axis=-1, keepdims=True, dtype=np.float64)
    return weights


def _each(kernel: Callable[..., Any], x: Floats, *others: Any, threads: int = 1) -> Floats:
    """Return the kernel over flat parts of x (and of arrays of its shape; numbers go as they are), in place; x is
    returned.
    """
    if not x.flags.c_contiguous:
        x[...] = _each(kernel, np.ascontiguousarray(x), *others, threads=threads)
        return x
    flat, numbers = [x.reshape(-1)], [other for other in others if np.ndim(other) == 0]
    flat += [np.ascontiguousarray(other, np.float32).reshape(-1) for other in others if np.ndim(other)]

    def part(start: int, stop: int) -> None:
        kernel(*(array[start:stop] for array in flat), *numbers)

    share_out(part, x.size, VALUES_PER_THREAD, threads)
    return x


KERNELS: dict[str, Callable[[Floats], Any]] = {
    "silu": activations.each_silu,  # x * sigmoid(x)
    "gelu": activations.each_gelu,  # x * (1 + erf(x / sqrt 2)) / 2
    "gelu_tanh": activations.each_gelu_tanh,  # its approximation by a tanh: `gelu_pytorch_tanh`, `gelu_new`
    "relu": lambda x: np.maximum(x, np.float32(0), out=x),
    "relu2": lambda x: np.square(np.maximum(x, np.float32(0), out=x), out=x),
}
silu, gelu, gelu_tanh, relu, relu2 = (partial(_each, kernel) for kernel in KERNELS.values())
KERNELS |= {
    "sigmoid": activations.each_sigmoid,  # 1 / (1 + e^-x)
    "softplus": activations.each_softplus,  # log(1 + e^x)
    "tanh": lambda x: np.tanh(x, out=x),
    "exp": lambda x: np.exp(x, out=x),
}
sigmoid, softplus = (partial(_each, KERNELS[name]) for name in ("sigmoid", "softplus"))
gelu_quick = partial(_each, activations.each_gelu_quick)  # x * sigmoid(1.702 x)


def xielu(x: Floats, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Floats:
    """Return the trained activation of Apertus, in place; the alphas as stored, softplus is applied to them here."""
    positive = np.float32(np.logaddexp(0, alpha_p))
    negative = np.float32(beta + np.logaddexp(0, alpha_n))
    below = (np.expm1(np.minimum(x, np.float32(eps))) - x) * negative
    above = positive * x * x
    np.add(np.where(x > 0, above, below), np.float32(beta) * x, out=x)
    return x


def softcap(x: Floats, cap: float, threads: int = 1) -> Floats:
    """Return cap * tanh(x / cap), in place."""
    return _each(activations.each_softcap, x, np.float32(cap), threads=threads)


def activated(name: str, x: Floats, threads: int = 1) -> Floats:
    """Return the activation `name` of x, in place."""
    return _each(KERNELS[name], x, threads=threads)


def situ(gate: Floats, up: Floats, bound: float, linear_bound: float, threads: int = 1) -> Floats:
    """Return Kimi K3's unit, sigmoid(gate) * gate * up, of which tanh keeps gate and up within bounds; linear_bound: 0
    or less for none.
    """
    if linear_bound > 0:
        up = softcap(up, linear_bound, threads)
    weighed = sigmoid(gate.copy(), threads=threads)
    weighed *= softcap(gate, bound, threads)
    return np.multiply(weighed, up, out=weighed)


def gated(name: str, gate: Floats, up: Floats, limit: float, threads: int = 1) -> Floats:
    """Return activation(gate) * up, in `gate`; "swiglu_oai" is GPT-OSS's unit: a quick gelu of the gate times up + 1,
    both clamped to `limit`.
    """
    if name == "swiglu_oai":
        return _each(activations.gated_swiglu_clamped, gate, up, np.float32(limit), threads=threads)

    def product(gate: Floats, up: Floats) -> None:
        KERNELS[name](gate)
        with np.errstate(over="ignore", invalid="ignore"):  # as kernels do; layers check for values that are not finite
            np.multiply(gate, up, out=gate)

    return _each(product, gate, up, threads=threads)


def gated_of_clamped(name: str, gate: Floats, up: Floats, limit: float, threads: int = 1) -> Floats:
    """Return activation(gate, at most `limit`) times up, between -limit and limit, in `gate`; `up` is changed, too."""
    bound = np.float32(limit)
    np.minimum(gate, bound, out=gate)
    return np.multiply(activated(name, gate, threads), np.clip(up, -bound, bound, out=up), out=gate)


def gated_within(name: str, gate: Floats, up: Floats, limit: float, threads: int = 1) -> Floats:
    """Return activation(gate), at most `limit`, times up, between -limit and limit, in `gate`; `up` is changed, too."""
    np.minimum(activated(name, gate, threads), np.float32(limit), out=gate)
    return np.multiply(gate, np.clip(up, np.float32(-limit), np.float32(limit), out=up), out=gate)
