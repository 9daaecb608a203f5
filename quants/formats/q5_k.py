"""Q5_K: 8 sub-blocks of 32 codes of 5 bits, each with a scale and a minimum of 6 bits. 5.5 bits per weight.

    byte   0     2      4                    16           48                               176
           | d   | dmin | scales             | qh          | qs[0]    qs[1]   ...    qs[127] |
           | f16 | f16  | 8 scales, 8 minima | fifth bits  | 2 x 4 bits ...                  |

    scales, first four bytes: scales 0-3, and above them the upper two bits of scales 4-7; next four: so the minima;
    last four: the lower four bits of scales 4-7, and above them those of minima 4-7
    qs, byte l of every 32: the lower four bits of codes l and l + 32 of 64
    bit j of qh[l] = code[32 * j + l] >> 4
    weight[i] = d * scale[i / 32] * code[i] - dmin * minimum[i / 32]

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
FORMAT = Format(
    "Q5_K",
    13,
    256,
    BLOCK,
    codec="quants.kernels.offset_superblocks",
    importance="used",
    fallback="Q5_1",
    activations="Q8_K",
    compile_cost=2,
    codes=Codes(
        32,
        (Plane(48, 4, 32), Plane(16, 1, 32, place=4)),
        scale=Scale((Bits(32, 4, 8, run=4, apart=64), Bits(36, 2, 8, run=4, apart=2))),
        minimum=Scale((Bits(64, 4, 8, run=4, apart=36), Bits(68, 2, 8, run=4, apart=2))),
    ),
)
