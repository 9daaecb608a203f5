"""Selective scans: the recurrences of Mamba and Mamba-2 over the tokens of one text. States and results in place.

Neighbouring channels lie next to each other in the states, so that loops over them become vector code.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .exponential import exp

f32 = np.float32


@njit(cache=True, nogil=True)
def scan_channels(x, dt, a, b, c, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Mamba: x, dt, y (tokens, channels); a, state (size, channels); b, c (tokens, size); channels start … stop."""
    for t in range(x.shape[0]):
        y[t, start:stop] = f32(0)
        for s in range(a.shape[0]):
            write, read = b[t, s], c[t, s]
            for i in range(start, stop):
                step = dt[t, i]
                state[s, i] = state[s, i] * exp(step * a[s, i]) + step * x[t, i] * write
                y[t, i] += state[s, i] * read


@njit(cache=True, nogil=True)
def scan_heads(x, dt, a, b, c, state, y, start, stop):  # type: ignore[no-untyped-def]
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
                write, read = step * b[t, group, s], c[t, group, s]
                for i in range(x.shape[2]):
                    state[h, s, i] = state[h, s, i] * decay + x[t, h, i] * write
                    y[t, h, i] += state[h, s, i] * read
