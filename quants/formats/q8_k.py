"""Q8_K: the format that llama.cpp rounds activations to in a product with most formats. 9.125 bits per weight.

    byte   0     4                               260                     292
           | d   | qs[0]  qs[1]  ...     qs[255] | bsums[0] ... bsums[15] |
           | f32 | i8                            | i16                    |

    weight[i] = d * qs[i];  bsums[j] = sum of qs of 16 values

Only copied: no weights are stored in it.
"""

import numpy as np

from ..format import Format

BLOCK = np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)])
FORMAT = Format("Q8_K", 15, 256, BLOCK)
