"""Q4_0: 32 codes of 4 bits that share one half-precision scale. 4.5 bits per weight.

    byte   0    2                                   18
           | d   | qs[0]    qs[1]    ...     qs[15]  |
           | f16 | 2 codes  ...                      |

    qs[i] = code[i] | code[i + 16] << 4
    weight[i] = d * (code[i] - 8)

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
FORMAT = Format(
    "Q4_0",
    2,
    32,
    BLOCK,
    codec="quants.kernels.small_blocks",
    importance="used",
    fallback="F16",
    activations="Q8_0",
    codes=Codes(32, (Plane(2, 4, 16),), scale=Scale((Bits(0, 16, 16),), apart=40)),
)
