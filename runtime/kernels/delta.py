"""The gated delta rule over the tokens of one text (Yang et al. 2024, "Gated Delta Networks"). In place."""

from __future__ import annotations

import numpy as np
from numba import njit

f32 = np.float32


@njit(cache=True, nogil=True)
def delta_heads(q, k, v, decay, beta, state, y, start, stop):  # type: ignore[no-untyped-def]
    """q, k (tokens, heads, size); v, y (tokens, heads, width); decay, beta (tokens, heads);
    state (heads, size, width); heads start … stop.

    A state forgets by `decay`; what it would answer to the key is moved towards the value by `beta`.
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
                learn(state[h, i], error, beta[t, h] * k[t, h, i], q[t, h, i], y[t, h])


@njit(cache=True, nogil=True)
def recall(state, decay, key, error):  # type: ignore[no-untyped-def]
    for j in range(state.size):
        state[j] *= decay
        error[j] -= key * state[j]


@njit(cache=True, nogil=True)
def learn(state, error, write, read, y):  # type: ignore[no-untyped-def]
    for j in range(state.size):
        state[j] += write * error[j]
        y[j] += read * state[j]
