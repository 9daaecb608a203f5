"""Rotary position embedding, in place: pairs of x (tokens, heads, head_dim) are rotated by the angles of cos and
sin.
"""

from quants.kernels.numba_internals import njit


@njit(cache=True, nogil=True)
def rotate_halves(x, cos, sin, start, stop):  # type: ignore[no-untyped-def]
    """Rotate value i with i + half; cos, sin: (tokens, half)."""
    half = cos.shape[1]
    for t in range(start, stop):
        for h in range(x.shape[1]):
            for i in range(half):
                a, b = x[t, h, i], x[t, h, half + i]
                x[t, h, i] = a * cos[t, i] - b * sin[t, i]
                x[t, h, half + i] = b * cos[t, i] + a * sin[t, i]


@njit(cache=True, nogil=True)
def rotate_adjacent(x, cos, sin, start, stop):  # type: ignore[no-untyped-def]
    """Rotate value 2i with 2i + 1; cos, sin: (tokens, half)."""
    for t in range(start, stop):
        for h in range(x.shape[1]):
            for i in range(cos.shape[1]):
                a, b = x[t, h, 2 * i], x[t, h, 2 * i + 1]
                x[t, h, 2 * i] = a * cos[t, i] - b * sin[t, i]
                x[t, h, 2 * i + 1] = b * cos[t, i] + a * sin[t, i]
