"""RWKV 6 and 7: what a layer knows of earlier tokens is a matrix for each head, and the token just before.

Every projection reads its own mixture of a token and the one before it.
Source: Peng et al. 2024, "Eagle and Finch"; Peng et al. 2025, "RWKV-7 Goose"; llama.cpp for what files hold.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import ops
from .arrays import Floats
from .kernels.scan import wkv7_heads, wkv_heads
from .layer import Layer, Pass
from .recurrence import filled, rows_before, scanned

HEAD_EPS = 64e-5  # of the norm of what a head gives, whatever the model's is
LEAST_LENGTH = np.float32(1e-12)  # of a key, as a divisor
SLOWEST = np.float32(-np.exp(-0.5))  # the logarithm of the least that RWKV 7's states are multiplied by


def time_mix(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """What one layer takes from earlier tokens, of x (tokens, width), with its projections: float32 (tokens, width)."""
    return (time_mix7 if "time_mix_k_k.weight" in layer else time_mix6)(forward, layer, x)


def with_channel_mix(forward: Pass, layer: Layer, x: Floats, first: int) -> Floats:
    """x (tokens, width) through a layer whose net looks at the token before, too, from position `first` of each text.

    Some files halve what every so many layers give, which keeps numbers of 16 bits in bounds.
    """
    with forward.timed("recurrence and convolution"):
        x = x + time_mix(forward, layer, forward.norm(layer, "attn_norm", x))
    normed = forward.norm(layer, "attn_norm_2", x)
    difference = rows_before(forward, layer, normed, 2) - normed
    x, normed, difference = (forward.from_position(first, part) for part in (x, normed, difference))
    inner = ops.relu(forward.project(layer, "channel_mix_key", _mixed(layer, "channel_mix_lerp_k", normed, difference)))
    given = forward.project(layer, "channel_mix_value", np.square(inner, out=inner))
    if "channel_mix_receptance.weight" in layer:
        mixed = _mixed(layer, "channel_mix_lerp_r", normed, difference)
        given *= ops.sigmoid(forward.project(layer, "channel_mix_receptance", mixed), threads=forward.threads)
    x = np.add(x, given, out=given)
    period = int(forward.keys.get("rescale_every_n_layers"))
    return x * np.float32(0.5) if period and (layer.index + 1) % period == 0 else x


def time_mix7(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """RWKV 7: a state answers to a key, and takes back part of that, channel by channel."""
    size, threads = int(forward.keys.need("wkv.head_size")), forward.threads
    difference = rows_before(forward, layer, x) - x
    lerp = layer.need_array("time_mix_lerp_fused.weight").reshape(-1, x.shape[1])
    read_r, read_w, read_k, read_v, read_a, *read_g = (x + difference * each for each in lerp)
    r, k, v = (forward.project(layer, f"time_mix_{name}", read) for name, read in (
        ("receptance", read_r), ("key", read_k), ("value", read_v),
    ))  # fmt: skip
    w = np.exp(SLOWEST * ops.sigmoid(_narrowed(forward, layer, "w", read_w, np.tanh), threads=threads))
    a = ops.sigmoid(_narrowed(forward, layer, "a", read_a), threads=threads)
    if layer.index == 0:
        forward.first_values = v
    elif forward.first_values is not None:
        v += (forward.first_values - v) * ops.sigmoid(_narrowed(forward, layer, "v", read_v), threads=threads)
    key = _heads(k * layer.need_array("time_mix_k_k.weight").reshape(-1), size)
    key /= np.maximum(np.linalg.norm(key, axis=2, keepdims=True), LEAST_LENGTH)
    k *= 1 + (a - 1) * layer.need_array("time_mix_k_a.weight").reshape(-1)
    r, k, v, w, a = (_heads(each, size) for each in (r, k, v, w, a))
    y = _scan(forward, layer, wkv7_heads, v, r, k, w, -key, key * a)
    y = _head_norm(forward, layer, y)
    y += _bonus(r, k, layer.need_array("time_mix_r_k.weight").reshape(-1, size), v)
    if "time_mix_g1.weight" in layer:
        gate = ops.sigmoid(forward.project(layer, "time_mix_g1", read_g[0]), threads=threads)
        y *= _heads(forward.project(layer, "time_mix_g2", gate), size)
    return forward.project(layer, "time_mix_output", y.reshape(x.shape))


def time_mix6(forward: Pass, layer: Layer, x: Floats) -> Floats:
    """RWKV 6: how much of the token before is mixed in, and how fast a state forgets, depends on the token.

    Layers that were made of a Qwen's (without `time_mix_first`) read what they have written, too, and don't norm it.
    """
    size, threads = int(forward.keys.need("wkv.head_size")), forward.threads
    difference = rows_before(forward, layer, x) - x
    read_w, read_k, read_v, read_r, read_g = _by_token(forward, layer, x, difference)
    r, k, v = (forward.project(layer, f"time_mix_{name}", read) for name, read in (
        ("receptance", read_r), ("key", read_k), ("value", read_v),
    ))  # fmt: skip
    gate = forward.project(layer, "time_mix_gate", read_g)
    decay = np.tanh(forward.project(layer, "time_mix_decay_w1", read_w))
    decay = forward.project(layer, "time_mix_decay_w2", decay) + layer.need_array("time_mix_decay.weight").reshape(-1)
    w = _heads(np.exp(-np.exp(decay)), size)
    r, k, v = (_heads(each, size) for each in (r, k, v))
    k, v = (np.repeat(each, r.shape[1] // each.shape[1], axis=1) for each in (k, v))
    if "time_mix_first.weight" in layer:
        y = _scan(forward, layer, wkv_heads, v, r, k, w)
        y += _bonus(r, k, layer.need_array("time_mix_first.weight").reshape(-1, size), v)
        y = _heads(ops.silu(gate, threads=threads), size) * _head_norm(forward, layer, y)
    else:
        k = k * (1 - w)
        y = _scan(forward, layer, wkv_heads, v, r * w, k, w)  # reads what has already forgotten once more
        y = (y + _bonus(r, k, None, v)) * np.float32(size**-0.5)
        y *= _heads(ops.sigmoid(gate, threads=threads), size)
    return forward.project(layer, "time_mix_output", y.reshape(len(x), -1))


def _by_token(forward: Pass, layer: Layer, x: Floats, difference: Floats) -> list[Floats]:
    """What each of five projections reads: how much of the difference, a narrow net of the token adds to."""
    inner = np.tanh(forward.project(layer, "time_mix_w1", _mixed(layer, "time_mix_lerp_x", x, difference)))
    parts = np.split(inner, 5, axis=1)
    added = [forward.project_expert(layer, "time_mix_w2", np.ascontiguousarray(p), i) for i, p in enumerate(parts)]
    if "time_mix_lerp_fused.weight" in layer:
        lerp = list(layer.need_array("time_mix_lerp_fused.weight").reshape(5, -1))
    else:  # older files
        lerp = [layer.need_array(f"time_mix_lerp_{kind}.weight").reshape(-1) for kind in "wkvrg"]
    return [x + difference * (own + more) for own, more in zip(lerp, added, strict=True)]


def _mixed(layer: Layer, name: str, x: Floats, difference: Floats) -> Floats:
    return x + difference * layer.need_array(f"{name}.weight").reshape(-1)


def _narrowed(forward: Pass, layer: Layer, kind: str, x: Floats, between: Callable[..., Any] | None = None) -> Floats:
    """The pair of narrow matrices of this kind, with a bias."""
    inner = forward.project(layer, f"time_mix_{kind}1", x)
    given = forward.project(layer, f"time_mix_{kind}2", inner if between is None else between(inner))
    return given + layer.need_array(f"time_mix_{kind}0.weight").reshape(-1)


def _heads(x: Floats, size: int) -> Floats:
    return x.reshape(len(x), -1, size)


def _scan(forward: Pass, layer: Layer, kernel: Callable[..., Any], v: Floats, *others: Floats) -> Floats:
    heads, size = v.shape[1:]
    wide = filled(v)
    inputs = wide, *(np.ascontiguousarray(each) for each in others)
    y = scanned(forward, layer, kernel, inputs, (heads, size, wide.shape[2]), heads)
    return np.ascontiguousarray(y[:, :, :size])


def _bonus(r: Floats, k: Floats, weights: Floats | None, v: Floats) -> Floats:
    """What a token reads of itself, (tokens, heads, size)."""
    scores = r * k if weights is None else r * k * weights
    own: Floats = np.sum(scores, axis=2, keepdims=True, dtype=np.float32) * v
    return own


def _head_norm(forward: Pass, layer: Layer, y: Floats) -> Floats:
    """A layer norm of what each head gives, where the layer has one."""
    weight, bias = layer.array("time_mix_ln.weight"), layer.array("time_mix_ln.bias")
    if weight is None:
        return y
    normed = ops.layer_norm(y, None, None, HEAD_EPS, forward.threads) * weight.reshape(y.shape[1:])
    return normed if bias is None else normed + bias.reshape(y.shape[1:])
