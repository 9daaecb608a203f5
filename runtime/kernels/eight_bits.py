"""Activations as llama.cpp rounds them for products with quantized weights: blocks of 8-bit numbers that share a
scale.
"""

import numpy as np

from quants.kernels.numba_internals import njit

from .exponential import ONE, ZERO, nearest

f32 = np.float32
TOP = f32(127)


@njit(cache=True, nogil=True, error_model="numpy")
def through_q8_0(blocks, scales):  # type: ignore[no-untyped-def]
    """Round blocks (n, 32) to integers in -127 … 127, in place, and compute their scales."""
    for b in range(blocks.shape[0]):
        top = ZERO
        for i in range(blocks.shape[1]):
            size = abs(blocks[b, i])
            top = size if size > top else top
        scales[b] = top / TOP
        inverse = TOP / top if top > ZERO else ZERO
        for i in range(blocks.shape[1]):
            blocks[b, i] = nearest(blocks[b, i] * inverse)


@njit(cache=True, nogil=True, error_model="numpy")
def through_q8_k(blocks, scales):  # type: ignore[no-untyped-def]
    """Round blocks with the value of largest magnitude at -127: its sign decides which end is used."""
    for b in range(blocks.shape[0]):
        top = ZERO
        for i in range(blocks.shape[1]):
            top = blocks[b, i] if abs(blocks[b, i]) > abs(top) else top
        inverse = -TOP / top if top != ZERO else ZERO
        scales[b] = ONE / inverse if top != ZERO else ZERO
        for i in range(blocks.shape[1]):
            value = nearest(blocks[b, i] * inverse)
            blocks[b, i] = TOP if value > TOP else value
