"""Q5_1: 32 codes of 5 bits that share a scale and a lowest value in half precision. 6 bits per weight.

    byte   0     2     4             8                                24
           | d   | m   | qh          | qs[0]    qs[1]    ...    qs[15] |
           | f16 | f16 | fifth bits  | 2 x 4 bits ...                  |

    qs[i] = code[i] & 15 | (code[i + 16] & 15) << 4; bit i of qh = code[i] >> 4
    weight[i] = d * code[i] + m

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
FORMAT = Format(
    "Q5_1",
    7,
    32,
    BLOCK,
    codec="quants.kernels.small_blocks",
    importance="used",
    fallback="F16",
    activations="Q8_1",
    codes=Codes(
        32,
        (Plane(8, 4, 16), Plane(4, 1, 1, place=4)),
        scale=Scale((Bits(0, 16, 16),), apart=40),
        minimum=Scale((Bits(16, 16, 16),), apart=40),
    ),
)
