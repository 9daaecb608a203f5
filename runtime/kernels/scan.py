"""Recurrences over the tokens of one text: Mamba, Mamba-2 and gated delta nets. States and results in place.

Neighbouring channels lie next to each other in the states, so that loops over them become vector code.
"""

import numpy as np
from numba import njit

from .exponential import exp

f32 = np.float32


@njit(cache=True, nogil=True)
def scan_channels(a, x, dt, b, c, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Mamba: x, dt, y (tokens, channels); a, state (size, channels); b, c (tokens, size); channels start … stop."""
    for t in range(x.shape[0]):
        for i in range(start, stop):
            y[t, i] = f32(0)
        for s in range(a.shape[0]):
            channel_step(
                x[t, start:stop], dt[t, start:stop], a[s, start:stop], b[t, s], c[t, s], state[s, start:stop],
                y[t, start:stop],
            )  # fmt: skip


@njit(cache=True, nogil=True)
def channel_step(x, dt, a, write, read, state, y):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        state[i] = state[i] * exp(dt[i] * a[i]) + dt[i] * x[i] * write
        y[i] += state[i] * read


@njit(cache=True, nogil=True)
def scan_heads(a, x, dt, b, c, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Mamba-2: x, y (tokens, heads, width); dt (tokens, heads); a (heads,); b, c (tokens, groups, size);
    state (heads, size, width); heads start … stop. Heads share b and c in equal groups of neighbours.
    """
    share = x.shape[1] // b.shape[1]
    for t in range(x.shape[0]):
        for h in range(start, stop):
            group, step = h // share, dt[t, h]
            decay = exp(step * a[h])
            y[t, h] = f32(0)
            for s in range(b.shape[2]):
                head_step(x[t, h], decay, step * b[t, group, s], c[t, group, s], state[h, s], y[t, h])


@njit(cache=True, nogil=True)
def head_step(x, decay, write, read, state, y):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        state[i] = state[i] * decay + x[i] * write
        y[i] += state[i] * read


@njit(cache=True, nogil=True)
def delta_heads(v, q, k, decay, beta, state, y, start, stop):  # type: ignore[no-untyped-def]
    """q, k (tokens, heads, size); v, y (tokens, heads, width); decay, beta (tokens, heads);
    state (heads, size, width); heads start … stop.

    The gated delta rule (Yang et al. 2024, "Gated Delta Networks"): a state forgets by `decay`; what it would answer to
    the key is moved towards the value by `beta`.
    """
    error = np.empty(v.shape[2], f32)
    for t in range(q.shape[0]):
        for h in range(start, stop):
            for j in range(error.size):
                error[j] = v[t, h, j]
                y[t, h, j] = f32(0)
            for i in range(q.shape[2]):
                recall(state[h, i], decay[t, h], k[t, h, i], error)
            for i in range(q.shape[2]):
                head_step(error, f32(1), beta[t, h] * k[t, h, i], q[t, h, i], state[h, i], y[t, h])


@njit(cache=True, nogil=True)
def recall(state, decay, key, error):  # type: ignore[no-untyped-def]
    for j in range(state.size):
        state[j] *= decay
        error[j] -= key * state[j]
