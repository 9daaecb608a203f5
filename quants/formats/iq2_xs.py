"""IQ2_XS: 256 values; every 8 are a point of a grid of 512 with signs, every 16 have a scale. 2.3125 bits per weight.

    byte   0      2                                    66                            74
           | d    | qs[0]  qs[1]  ...           qs[31] | scales[0]  ...    scales[7] |
           | f16  | 9 bits index, 7 bits signs         | 2 x 4 bits, low half first  |

    weight[8 * k + i] = d * (0.5 + scale k / 2) / 4 * GRID[index of qs[k]][i] * sign i,  GRID of 8, 25, 43
    The eighth sign makes the number of negative ones even.

Encoder: byte for byte the same as llama.cpp's. It needs importance weights.
"""

import numpy as np

from ..codes import Bits, Points, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
FORMAT = Format(
    "IQ2_XS",
    17,
    256,
    BLOCK,
    codec="quants.kernels.iq2",
    importance="needed",
    is_very_low_bits=True,
    fallback="IQ4_NL",
    activations="Q8_K",
    compile_cost=4,
    points=Points("IQ2_XS", 16, scale=Scale((Bits(528, 4, 4),)), indexes=(Bits(16, 9, 16),), signs=Bits(25, 7, 16)),
)
