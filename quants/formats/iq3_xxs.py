"""IQ3_XXS: 256 values; every 4 are a point of a grid of 256 with signs, every 32 have a scale. 3.0625 bits per weight.

    byte   0      2                    66                                         98
           | d    | qs[64]             | scales_and_signs[8]                      |
           | f16  | 8 bits index each  | u32: 4 x 7 bits signs, then 4 bits scale |

    weight[4 * k + i] = d * (0.5 + scale k / 8) / 2 * GRID[qs[k]][i] * sign,  GRID of 4, 12, 20, 28, 36, 44, 52, 62
    The eighth sign makes the number of negative ones even.

Encoder: byte for byte the same as llama.cpp's.
"""

import numpy as np

from ..codes import Bits, Points, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("scales_and_signs", "<u4", 8)])
FORMAT = Format(
    "IQ3_XXS",
    18,
    256,
    BLOCK,
    codec="quants.kernels.iq3",
    importance="used",
    is_very_low_bits=True,
    fallback="IQ4_NL",
    activations="Q8_K",
    compile_cost=4,
    points=Points(
        "IQ3_XXS",
        32,
        scale=Scale((Bits(556, 4, 32),)),
        indexes=(Bits(16, 8, 8),),
        signs=Bits(528, 7, 7, run=4, apart=32),
    ),
)
