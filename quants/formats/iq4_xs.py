"""IQ4_XS: 256 values of 4 bits, numbers of sixteen unevenly spaced levels; every 32 have a 6-bit scale. 4.25 bits per
weight.

    byte   0      2           4             8                                 136
           | d    | scales_h  | scales_l[4] | qs[0]  qs[1]  ...       qs[127] |
           | f16  | 8 x 2 bits| 8 x 4 bits  | 2 x 4 bits, low half first      |

    s[k] = 4 bits of scales_l (low half of a byte first) | 2 bits of scales_h << 4
    weight[32 * k + i] = d * (s[k] - 32) * LEVEL[low half of qs[16 * k + i]],  i < 16;  + 16 from the high half
    LEVEL = -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113

Encoder: byte for byte the same as llama.cpp's: for every 32 values the best of 16 scales by weighted square error.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
FORMAT = Format(
    "IQ4_XS",
    23,
    256,
    BLOCK,
    codec="quants.kernels.iq4",
    importance="used",
    fallback="IQ4_NL",
    activations="Q8_K",
    codes=Codes(32, (Plane(8, 4, 16),), even=False, scale=Scale((Bits(32, 4, 4), Bits(16, 2, 2)))),
)
