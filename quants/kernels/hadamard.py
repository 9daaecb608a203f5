"""The regular Hadamard rotation of groups of 4^n values ("ConvRot"), which is its own inverse.

         [ 1  1  1 -1 ]
         [ 1  1 -1  1 ]
    H4 = [ 1 -1  1  1 ] / 2        H(4 * n) = H4 x H(n), the Kronecker product
         [-1  1  1  1 ]

The matrix is symmetric and orthogonal. Groups are rotated by n passes of H4, in float32 and in one order, so that the
values are the same on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel


@kernel
def rotate_groups(values: NDArray[np.float32], size: int) -> None:
    """Rotate each group of `size` values in place; `size` is a power of 4 that divides their number. values: flat."""
    half = np.float32(0.5)
    for start in range(0, values.size, size):
        step = 1
        while step < size:
            for block in range(start, start + size, 4 * step):
                for i in range(block, block + step):
                    a, b, c, d = values[i], values[i + step], values[i + 2 * step], values[i + 3 * step]
                    values[i] = ((a + b) + (c - d)) * half
                    values[i + step] = ((a + b) - (c - d)) * half
                    values[i + 2 * step] = ((a - b) + (c + d)) * half
                    values[i + 3 * step] = ((c + d) - (a - b)) * half
            step *= 4
