"""I16: signed integers of 2 bytes. Files carry them; weights are never turned into them."""

import numpy as np

from ..format import Format

BLOCK = np.dtype("<i2")
FORMAT = Format("I16", 25, 1, BLOCK, codec="quants.kernels.numbers")
