"""I8: signed integers of one byte. Files carry them; weights are never turned into them."""

import numpy as np

from ..format import Format

BLOCK = np.dtype("i1")
FORMAT = Format("I8", 24, 1, BLOCK, codec="quants.kernels.numbers")
