"""Q4_1: 32 codes of 4 bits that share a scale and a lowest value in half precision. 5 bits per weight.

    byte   0     2     4                                20
           | d   | m   | qs[0]    qs[1]    ...    qs[15] |
           | f16 | f16 | 2 codes  ...                    |

    qs[i] = code[i] | code[i + 16] << 4
    weight[i] = d * code[i] + m

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
FORMAT = Format(
    "Q4_1",
    3,
    32,
    BLOCK,
    codec="quants.kernels.small_blocks",
    importance="used",
    fallback="F16",
    activations="Q8_1",
    codes=Codes(
        32, (Plane(4, 4, 16),), scale=Scale((Bits(0, 16, 16),), apart=40), minimum=Scale((Bits(16, 16, 16),), apart=40)
    ),
)
