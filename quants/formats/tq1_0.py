"""TQ1_0: 256 values of -1, 0 or 1, five to a byte, that share one half-precision scale. 1.6875 bits per weight.

    byte   0                              48                      52     54
           | qs[0]  qs[1]  ...     qs[47] | qh[0]  ...      qh[3] | d    |
           | 5 trits each                 | 4 trits each          | f16  |

    A byte is ceil(t * 256 / 243) where t, of five base-3 digits, holds the first value in its highest digit.
    weight[32 * j + i]       = d * (digit j of qs[i] - 1)        i < 32, j < 5
    weight[160 + 16 * j + i] = d * (digit j of qs[32 + i] - 1)   i < 16, j < 5
    weight[240 + 4 * j + i]  = d * (digit j of qh[i] - 1)        i < 4,  j < 4

Encoder: byte for byte the same as llama.cpp's: d is the largest magnitude. It ignores importance weights, and is
made for models trained with such weights.
"""

import numpy as np

from ..format import Format

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
FORMAT = Format(
    "TQ1_0", 34, 256, BLOCK, codec="quants.kernels.bits_and_trits", fallback="Q4_0", activations="Q8_K", like="TQ2_0"
)
