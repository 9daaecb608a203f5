"""Q2_K: 16 sub-blocks of 16 codes of 2 bits, each with a scale and a minimum of 4 bits. 2.625 bits per weight.

    byte   0                          16                            80    82     84
           | scales[0]  ... scales[15] | qs[0]    ...        qs[63] | d   | dmin |
           | scale, minimum            | 4 codes                    | f16 | f16  |

    scales[j] = scale[j] | minimum[j] << 4
    qs, byte l of every 32: codes l, l + 32, l + 64, l + 96 of 128, from the lowest bits up
    weight[i] = d * scale[i / 16] * code[i] - dmin * minimum[i / 16]

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
FORMAT = Format(
    "Q2_K",
    10,
    256,
    BLOCK,
    codec="quants.kernels.offset_superblocks",
    importance="used",
    fallback="Q4_0",
    activations="Q8_K",
    compile_cost=2,
    codes=Codes(16, (Plane(16, 2, 32),), scale=Scale((Bits(0, 4, 8),)), minimum=Scale((Bits(4, 4, 8),))),
)
