"""Q4_K: 8 sub-blocks of 32 codes of 4 bits, each with a scale and a minimum of 6 bits. 4.5 bits per weight.

    byte   0     2      4                    16                                  144
           | d   | dmin | scales             | qs[0]    qs[1]      ...     qs[127] |
           | f16 | f16  | 8 scales, 8 minima | 2 codes  ...                        |

    scales, first four bytes: scales 0-3, and above them the upper two bits of scales 4-7; next four: so the minima;
    last four: the lower four bits of scales 4-7, and above them those of minima 4-7
    qs, byte l of every 32: the lower four bits of codes l and l + 32 of 64
    weight[i] = d * scale[i / 32] * code[i] - dmin * minimum[i / 32]

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
FORMAT = Format(
    "Q4_K",
    12,
    256,
    BLOCK,
    codec="quants.kernels.offset_superblocks",
    importance="used",
    fallback="Q5_0",
    activations="Q8_K",
    compile_cost=2,
    codes=Codes(
        32,
        (Plane(16, 4, 32),),
        scale=Scale((Bits(32, 4, 8, run=4, apart=64), Bits(36, 2, 8, run=4, apart=2))),
        minimum=Scale((Bits(64, 4, 8, run=4, apart=36), Bits(68, 2, 8, run=4, apart=2))),
    ),
)
