"""IQ2_S: 256 values; every 8 are a point of a grid of 1024 with signs, every 16 have a scale. 2.5625 bits per weight.

    byte   0      2                      34                     66              74                82
           | d    | qs[32]               | signs[32]            | qh[8]         | scales[8]       |
           | f16  | low 8 bits of index  | 8 bits each          | 2 more bits x4| 2 x 4 bits each |

    index k = qs[k] | 2 bits of qh[k / 4] << 8, the lowest bits for the first of four; scales: low half first
    weight[8 * k + i] = d * (0.5 + scale k / 2) / 4 * GRID[index k][i] * sign i of signs[k],  GRID of 8, 25, 43

Encoder: byte for byte the same as llama.cpp's.
"""

import numpy as np

from ..codes import Bits, Points, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])
FORMAT = Format(
    "IQ2_S",
    22,
    256,
    BLOCK,
    codec="quants.kernels.iq2",
    importance="used",
    is_very_low_bits=True,
    fallback="IQ4_NL",
    activations="Q8_K",
    compile_cost=4,
    points=Points(
        "IQ2_S", 16, scale=Scale((Bits(592, 4, 4),)), indexes=(Bits(16, 8, 8), Bits(528, 2, 2)), signs=Bits(272, 8, 8)
    ),
)
