"""IQ2_XXS: 256 values; every 8 are a point of a grid of 256 with signs, every 32 have a scale. 2.0625 bits per weight.

    byte   0      2                    6                                         66
           | d    | qs[0] 4 indexes    | qs[1] 4 x 7 bits signs, 4 bits scale    | … qs[15] |
           | f16  | 4 x u8             | u32                                     |

    weight[32 * g + 8 * k + i] = d * (0.5 + scale g) / 4 * GRID[index k][i] * sign i,  GRID of 8, 25, 43
    The eighth sign makes the number of negative ones even.

Encoder: byte for byte the same as llama.cpp's. It needs importance weights.
"""

import numpy as np

from ..codes import Bits, Points, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", [("indexes", "u1", 4), ("signs_and_scale", "<u4")], 8)])
FORMAT = Format(
    "IQ2_XXS",
    16,
    256,
    BLOCK,
    codec="quants.kernels.iq2",
    importance="needed",
    is_very_low_bits=True,
    fallback="IQ4_NL",
    activations="Q8_K",
    compile_cost=4,
    points=Points(
        "IQ2_XXS",
        32,
        scale=Scale((Bits(76, 4, 64),)),
        indexes=(Bits(16, 8, 8, run=4, apart=64),),
        signs=Bits(48, 7, 7, run=4, apart=64),
    ),
)
