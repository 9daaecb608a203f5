"""Q8_1: the format that llama.cpp rounds activations to in a product with Q4_1 or Q5_1. 10 bits per weight.

    byte   0     4     8                              40
           | d   | s   | qs[0]  qs[1]  ...     qs[31] |
           | f32 | f32 | i8                           |

    weight[i] = d * qs[i];  s = d * sum of qs

Only copied: no weights are stored in it.
"""

import numpy as np

from ..format import Format

BLOCK = np.dtype([("d", "<f4"), ("s", "<f4"), ("qs", "i1", 32)])
FORMAT = Format("Q8_1", 9, 32, BLOCK)
