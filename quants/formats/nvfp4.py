"""NVFP4: 64 values of E2M1 (4-bit float), every 16 under a scale of unsigned E4M3. 4.5 bits per weight.

    byte   0                   4                               36
           | d[0]  ...    d[3] | qs[0]  qs[1]  ...      qs[31] |
           | e4m3 each         | 2 x 4 bits, low half first    |

    weight[16 * k + i] = d[k] * E2M1[low half of qs[8 * k + i]],  weight[16 * k + 8 + i] from the high half,  i < 8
    E2M1 = 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negative

Encoder: byte for byte the same as llama.cpp's: d is a sixth of the largest magnitude, rounded half up, and 448
where that reaches 256. There is no scale of the whole tensor here, so groups below 6 / 1024 vanish and values above
2688 saturate. It ignores importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "u1", 4), ("qs", "u1", 32)])
FORMAT = Format(
    "NVFP4",
    40,
    64,
    BLOCK,
    codec="quants.kernels.fp4",
    fallback="F16",
    activations="Q8_0",
    codes=Codes(16, (Plane(4, 4, 8),), even=False, scale=Scale((Bits(0, 8, 8),))),
)
