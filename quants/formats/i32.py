"""I32: signed integers of 4 bytes. Files carry them; weights are never turned into them."""

import numpy as np

from ..format import Format

BLOCK = np.dtype("<i4")
FORMAT = Format("I32", 26, 1, BLOCK, codec="quants.kernels.numbers")
