"""Shared by layers with states: convolutions over the last few tokens, and scans over the tokens of a text.

The cache keeps the last inputs of the convolution, and the state of the recurrence if there is one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from quants.kernels.lanes import LANES

from ..arrays import Floats
from ..kernels.scan import convolve
from ..kernels.threads import share_out
from ..layer import ForwardContext, Layer

LIGHTNING_EPS = 1e-6  # of the norm after lightning attention, whatever the model's is
UPDATES_PER_THREAD = 1 << 16  # of values of a state: below this, starting a thread costs more than it saves


def convolved_by(forward: ForwardContext, layer: Layer, taps: Floats, bias: Floats | None, x: Floats) -> Floats:
    """Return each channel's convolution with its taps (channels, count), causal, in encoders centered, of x (tokens,
    …).
    """
    channels, count = taps.shape
    known = tailed(forward, layer, x, count - 1)
    if not forward.block.causal:  # half of the zeros follow the text
        known = np.roll(known, -(count // 2), axis=1)
    wide, begin = filled(known), filled(np.zeros(channels, np.float32) if bias is None else bias)
    out, columns = np.empty((forward.texts, forward.length, wide.shape[2]), np.float32), filled(taps.T)
    for text in range(forward.texts):
        part = partial(convolve, wide[text], columns, begin, out[text])
        share_out(part, forward.length, UPDATES_PER_THREAD // channels + 1, forward.threads)
    return np.ascontiguousarray(out[:, :, :channels]).reshape(x.shape)


def tailed(forward: ForwardContext, layer: Layer, x: Floats, count: int, number: int = 0) -> Floats:
    """Return x (tokens, channels) of each text after the `count` rows before it: (texts, count + length, channels).

    The cache keeps the last rows as the layer's state `number`, of which the first one counts the tokens.
    """
    kept, channels = list(_kept(forward, layer)), x.shape[1]
    tail = kept[number] if number < len(kept) else np.zeros((forward.texts, count, channels), np.float32)
    known = np.concatenate((tail, x.reshape(forward.texts, forward.length, channels)), axis=1)
    if forward.cache is not None:
        kept[number : number + 1] = [known[:, forward.length :].copy()]
        forward.cache.keep(layer.index, 0 if number else forward.length, *kept)
        if forward.cache.memory:
            ends = range(max(0, forward.length - forward.cache.memory - 1), forward.length)
            forward.cache.remember(layer.index, number, [known[:, i + 1 : i + 1 + count].copy() for i in ends])
    return known


def rows_before(forward: ForwardContext, layer: Layer, x: Floats, number: int = 0) -> Floats:
    """Return for each token the row of the previous token of its text, zeros for the first: like x (tokens, channels).
    number: as in `tailed`.
    """
    return np.ascontiguousarray(tailed(forward, layer, x, 1, number)[:, :-1]).reshape(x.shape)


def counted(forward: ForwardContext, layer: Layer) -> None:
    """Count the tokens in the cache, for a layer without a convolution."""
    if forward.cache is None:
        return
    nothing, *state = _kept(forward, layer) or [np.zeros((forward.texts, 0), np.float32)]
    forward.cache.keep(layer.index, forward.length, nothing, *state)
    if forward.cache.memory:
        forward.cache.remember(layer.index, 0, [nothing] * min(forward.length, forward.cache.memory + 1))


def scanned(
    forward: ForwardContext,
    layer: Layer,
    kernel: Callable[..., Any],
    inputs: tuple[Floats, ...],
    shape: tuple[int, ...],
    count: int,
) -> Floats:
    """Return kernel(*inputs, state, result, start, stop) for each text: an array like the first of the inputs.

    inputs: (tokens, …) each. shape: of a text's state, which is changed in place; threads share its `count` channels or
    heads. Call it after `convolved_by`, `tailed` or `counted`, which count the tokens.
    """
    kept, out = _kept(forward, layer), np.empty_like(inputs[0])
    state = kept[1] if len(kept) > 1 else np.zeros((forward.texts, *shape), np.float32)
    alone = 0 if forward.cache is None else min(forward.length, forward.cache.memory)  # tokens to be remembered
    begins = [0] * (forward.length > alone) + [*range(forward.length - alone, forward.length)]
    for begin, end in zip(begins, [*begins[1:], forward.length], strict=True):
        min_share = UPDATES_PER_THREAD // ((end - begin) * (state[0].size // count)) + 1
        for text, own in enumerate(state):
            rows = slice(text * forward.length + begin, text * forward.length + end)
            share_out(
                partial(kernel, *(each[rows] for each in inputs), own, out[rows]), count, min_share, forward.threads
            )
        if alone and forward.cache is not None:
            forward.cache.remember(layer.index, 1, [state.copy()])
    if forward.cache is not None:
        forward.cache.keep(layer.index, 0, kept[0], state, *kept[2:])
    return out


def scan_values(
    forward: ForwardContext, layer: Layer, kernel: Callable[..., Any], size: int, values: Floats, *others: Floats
) -> Floats:
    """Return `scanned` of a matrix (size, width of a value) for each head of values (tokens, heads, width)."""
    heads, width, wide = values.shape[1], values.shape[2], filled(values)
    inputs = wide, *map(np.ascontiguousarray, others)
    y = scanned(forward, layer, kernel, inputs, (heads, size, wide.shape[2]), heads)
    return np.ascontiguousarray(y[:, :, :width])


def lightning_rates(layer: int, layers: int, heads: int) -> Floats:
    """Return the decay rate of each head of lightning attention: the later the layer, the slower."""
    pace = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    rates: Floats = (np.exp2(-8 / heads * np.arange(1, heads + 1)) * pace).astype(np.float32)
    return rates


def filled(x: Floats) -> Floats:
    """Return x with its last axis padded with zeros for the kernels of `scan`."""
    short = -x.shape[-1] % LANES
    return np.ascontiguousarray(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)]) if short else x)


def _kept(forward: ForwardContext, layer: Layer) -> tuple[Floats, ...]:
    return forward.cache.states(layer.index) if forward.cache is not None else ()
