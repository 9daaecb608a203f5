"""I64: signed integers of 8 bytes. Files carry them; weights are never turned into them."""

import numpy as np

from ..format import Format

BLOCK = np.dtype("<i8")
FORMAT = Format("I64", 27, 1, BLOCK, codec="quants.kernels.numbers")
