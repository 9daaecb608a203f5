"""F64: double precision of 8 bytes. Files carry them; weights are never turned into them."""

import numpy as np

from ..format import Format

BLOCK = np.dtype("<f8")
FORMAT = Format("F64", 28, 1, BLOCK, codec="quants.kernels.numbers", infinity=0x7FF << 52)
