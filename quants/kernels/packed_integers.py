"""Integers of a few bits packed into 32-bit words, as quantized checkpoints store them, to floats.

`at` says where in its row of words a value begins: bit `at & 31` of word `at >> 5`. A value may reach into the next
word. weight = (integer - zero) * scale, where zeros and scales are those of the value's group.
"""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def unpack(words: Words, at: Indices, bits: int, out: Floats) -> None:
    """Unpack integers. words: (n, words of a row), at: (width,) → out (n, width)."""
    nothing = np.zeros((len(out), 1), np.float32)
    dequantize_rows(words, at, bits, np.zeros(out.shape[1], np.int64), nothing, nothing + np.float32(1), out)


@kernel
def dequantize_rows(
    words: Words, at: Indices, bits: int, group: Indices, zeros: Floats, scales: Floats, out: Floats
) -> None:
    """Dequantize rows packed along themselves. words: (n, words of a row); at, group: (width,); zeros, scales: (n,
    groups).
    """
    mask = np.uint32((1 << bits) - 1)
    for row in range(out.shape[0]):
        for i in range(out.shape[1]):
            word, shift = at[i] >> 5, np.uint32(at[i] & 31)
            value = words[row, word] >> shift
            if shift + bits > 32:
                value |= words[row, word + 1] << (np.uint32(32) - shift)
            g = group[i]
            out[row, i] = (np.float32(value & mask) - zeros[row, g]) * scales[row, g]


@kernel
def dequantize_columns(
    words: Words, at: Indices, bits: int, group: Indices, zeros: Floats, scales: Floats, out: Floats
) -> None:
    """Dequantize rows packed side by side. words: (words of a column, width); at: (n,), within a word; group:
    (width,).
    """
    mask = np.uint32((1 << bits) - 1)
    for row in range(out.shape[0]):
        word, shift = at[row] >> 5, np.uint32(at[row] & 31)
        for i in range(out.shape[1]):
            g = group[i]
            out[row, i] = (np.float32((words[word, i] >> shift) & mask) - zeros[row, g]) * scales[row, g]


@kernel
def dequantize_pairs(
    pairs: NDArray[np.uint8], first: int, block: int, code: Floats, absmax: Floats, out: Floats
) -> None:
    """Dequantize values of 4 bits, the upper half of a byte first: look them up in `code` and multiply by their block's
    absmax.

    first: the position of out's first value, counted from that of the first byte, whose block is absmax[0].
    """
    for i in range(out.size):
        place = first + i
        byte = np.int64(pairs[place >> 1])
        out[i] = code[byte & 15 if place & 1 else byte >> 4] * absmax[place // block]
