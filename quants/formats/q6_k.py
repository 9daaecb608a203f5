"""Q6_K: 16 sub-blocks of 16 codes of 6 bits, each with a scale of 8 bits. 6.5625 bits per weight.

    byte   0                   128                 192                      208    210
           | ql[0] ...  ql[127] | qh[0]  ... qh[63] | scales[0] ... [15]     | d    |
           | 2 x lower 4 bits   | 4 x upper 2 bits  | i8                     | f16  |

    of 128 codes: ql[l] = code[l] & 15 | (code[l + 64] & 15) << 4 for l < 64,
    qh[l] = upper bits of code[l], code[l + 32], code[l + 64], code[l + 96] from the lowest up for l < 32
    weight[i] = d * scales[i / 16] * (code[i] - 32)

Encoder: byte for byte the same as llama.cpp's, with and without importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
FORMAT = Format(
    "Q6_K",
    14,
    256,
    BLOCK,
    codec="quants.kernels.signed_superblocks",
    importance="used",
    fallback="Q8_0",
    activations="Q8_K",
    compile_cost=2,
    codes=Codes(16, (Plane(0, 4, 64), Plane(128, 2, 32, place=4)), scale=Scale((Bits(1536, 8, 8),))),
)
