"""IQ1_M: 256 values; every 8 are a point of a grid of 2048, every 16 have a scale. 1.75 bits per weight.

    byte   0                     32                                   48                                       56
           | qs[32]              | qh[16]                             | scales[4], u16 each                    |
           | low 8 bits of index | 2 x (3 bits of index, up or down)  | 4 x 3 bits scale, 4 bits of f16 d      |

    index k = qs[k] | 3 bits of qh[k / 2] << 8, low half first; d: its low bits in scales[0]
    weight[8 * k + i] = d * (2 * scale k / 2 + 1) * (GRID[index k][i] ± 1 / 8),  GRID of -1, 0, 1
    down (-) if the highest bit of qh's half is set

Encoder: byte for byte the same as llama.cpp's.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import Bits, Points, Scale
from ..format import Format

BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])


def bad_blocks(blocks: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether d, assembled from the highest four bits of all scales, is NaN or infinite."""
    bits = np.bitwise_or.reduce((blocks["scales"] >> 12).astype("<u2") << np.arange(0, 16, 4, dtype="<u2"), axis=1)
    return np.asarray(bits & 0x7C00 == 0x7C00)


FORMAT = Format(
    "IQ1_M",
    29,
    256,
    BLOCK,
    codec="quants.kernels.iq1",
    importance="used",
    is_very_low_bits=True,
    fallback="IQ4_NL",
    activations="Q8_K",
    compile_cost=4,
    bad_blocks=bad_blocks,
    points=Points(
        "IQ1_M",
        16,
        scale=Scale((Bits(384, 3, 3, run=4, apart=16),)),
        indexes=(Bits(0, 8, 8), Bits(256, 3, 4)),
        signs=Bits(259, 1, 4),
    ),
)
