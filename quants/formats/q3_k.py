"""Q3_K: 16 sub-blocks of 16 codes of 3 bits, each with a scale of 6 bits. 3.4375 bits per weight.

    byte   0           32                        96                    108   110
           | hmask     | qs[0]    ...    qs[63]  | scales              | d   |
           | third bit | 4 x lower 2 bits        | 16 scales of 6 bits | f16 |

    bit j of hmask[l] = code[32 * j + l] >> 2
    qs, byte l of every 32: the lower two bits of codes l, l + 32, l + 64, l + 96 of 128, from the lowest up
    scales[j] = scale[j] & 15 | (scale[j + 8] & 15) << 4 for j < 8,
    scales[j + 8] = upper bits of scale[j], scale[j + 4], scale[j + 8], scale[j + 12] from the lowest up for j < 4
    weight[i] = d * (scale[i / 16] - 32) * (code[i] - 4)

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
FORMAT = Format(
    "Q3_K",
    11,
    256,
    BLOCK,
    codec="quants.kernels.signed_superblocks",
    importance="used",
    fallback="Q4_0",
    activations="Q8_K",
    compile_cost=2,
    codes=Codes(
        16,
        (Plane(32, 2, 32), Plane(0, 1, 32, place=2)),
        scale=Scale((Bits(768, 4, 8, run=8, apart=4), Bits(832, 2, 8, run=4, apart=2))),
    ),
)
