"""What layers with states share: convolutions over the last few tokens, and scans over the tokens of a text."""

from collections.abc import Callable

import numpy as np

from .arrays import Floats
from .kernels.threads import share_out
from .layer import Layer, Pass

UPDATES_PER_THREAD = 1 << 16  # of values of a state: below this, starting a thread costs more than it saves


def convolved(forward: Pass, layer: Layer, name: str, x: Floats, tail: Floats | None) -> tuple[Floats, Floats]:
    """Each channel's causal convolution over its text, and the inputs that the next tokens will need.

    x (tokens, channels); tail: the last inputs before x, (texts, taps - 1, channels); None: zeros.
    """
    taps = layer.need_array(f"{name}.weight")
    channels, count = taps.shape
    each = x.reshape(forward.texts, forward.length, channels)
    if tail is None:
        tail = np.zeros((forward.texts, count - 1, channels), np.float32)
    known = np.concatenate((tail, each), axis=1)
    out = np.empty_like(each)
    bias = layer.array(f"{name}.bias")
    out[...] = 0 if bias is None else bias
    for tap in range(count):
        out += known[:, tap : tap + forward.length] * taps[:, tap]
    return out.reshape(x.shape), known[:, forward.length :].copy()


def scan_texts(
    forward: Pass, scan: Callable[[slice, Floats, int, int], None], state: Floats, count: int, updates: int
) -> None:
    """scan(rows of x, its state, start, stop) for each text, in place, its `count` channels or heads shared by threads.

    state: (texts, …); updates: how many values of it one token changes in each channel or head.
    """
    least = UPDATES_PER_THREAD // (forward.length * updates) + 1
    for text, own in enumerate(state):
        rows = slice(text * forward.length, (text + 1) * forward.length)

        def part(start: int, stop: int, rows: slice = rows, own: Floats = own) -> None:
            scan(rows, own, start, stop)

        share_out(part, count, least, forward.threads)


def split(x: Floats, *ends: int) -> list[Floats]:
    """Columns of x (tokens, width), each part an array of its own."""
    return [np.ascontiguousarray(part) for part in np.split(x, ends, axis=1)]


def states(forward: Pass, layer: Layer) -> tuple[Floats | None, Floats | None]:
    """The convolution's last inputs and the recurrence's state, where earlier tokens left any."""
    kept = forward.cache.states(layer.index) if forward.cache is not None else ()
    return (kept[0] if kept else None), (kept[1] if len(kept) > 1 else None)


def keep(forward: Pass, layer: Layer, *states: Floats) -> None:
    """Leave the layer's states for the tokens that come next."""
    if forward.cache is not None:
        forward.cache.keep(layer.index, forward.length, *states)
