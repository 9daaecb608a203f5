"""IQ1_S: 256 values; every 8 are a point of a grid of 2048, every 32 have a scale. 1.5625 bits per weight.

    byte   0      2                     34                                              50
           | d    | qs[32]              | qh[8], u16 each                               |
           | f16  | low 8 bits of index | 4 x 3 bits of index, 3 bits scale, up or down |

    index k = qs[k] | 3 bits of qh[k / 4] << 8, the lowest bits for the first of four
    weight[8 * k + i] = d * (2 * scale k / 4 + 1) * (GRID[index k][i] ± 1 / 8),  GRID of -1, 0, 1
    down (-) if the highest bit of qh[k / 4] is set

Encoder: byte for byte the same as llama.cpp's. It needs importance weights.
"""

import numpy as np

from ..codes import Bits, Points, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
FORMAT = Format(
    "IQ1_S",
    19,
    256,
    BLOCK,
    codec="quants.kernels.iq1",
    importance="needed",
    is_very_low_bits=True,
    fallback="IQ4_NL",
    activations="Q8_K",
    compile_cost=4,
    points=Points(
        "IQ1_S", 32, scale=Scale((Bits(284, 3, 16),)), indexes=(Bits(16, 8, 8), Bits(272, 3, 3, run=4, apart=16))
    ),
)
