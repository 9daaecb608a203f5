"""IQ3_S: 256 values; every 4 are a point of a grid of 512 with signs, every 32 have a scale. 3.4375 bits per weight.

    byte   0      2                     66                    74              106                 110
           | d    | qs[64]              | qh[8]               | signs[32]     | scales[4]         |
           | f16  | low 8 bits of index | ninth bits x 8 each | 8 bits each   | 2 x 4 bits each   |

    index k = qs[k] | bit k % 8 of qh[k / 8] << 8; scales: low half first; signs: lowest bit first
    weight[4 * k + i] = d * (1 + 2 * scale k / 8) * GRID[index k][i] * sign,  GRID of 1, 3, 5, 7, 9, 11, 13, 15

Encoder: byte for byte the same as llama.cpp's. So it is also where 32 values are all zero: llama.cpp then
forgets to leave room for them, and the indexes and signs of the groups that follow move forward, into places where
the decoder does not look for them.
"""

import numpy as np

from ..codes import Bits, Points, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
FORMAT = Format(
    "IQ3_S",
    21,
    256,
    BLOCK,
    codec="quants.kernels.iq3",
    importance="used",
    fallback="IQ4_NL",
    activations="Q8_K",
    compile_cost=4,
    points=Points(
        "IQ3_S", 32, scale=Scale((Bits(848, 4, 4),)), indexes=(Bits(16, 8, 8), Bits(528, 1, 1)), signs=Bits(592, 8, 8)
    ),
)
