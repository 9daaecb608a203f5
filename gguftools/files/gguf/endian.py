"""Byte order of tensor data: which bytes of a block are numbers of several bytes.

(first byte, bytes of a number, how many), by what ggml reads as one number on the machine it runs on. That is more than
the fields of its structures: the high bits of Q5_0 and Q5_1, the signs of IQ2_XXS and IQ3_XXS and the scales of IQ1_M
are arrays of bytes, or of shorter numbers, that are read as 32 or 16 bits. In MXFP4 and NVFP4 all are single bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quants import Format, FormatError

Field = tuple[int, int, int]

SCALE = (0, 2, 1)
FIELDS: dict[str, tuple[Field, ...]] = {
    "Q4_0": (SCALE,), "Q4_1": ((0, 2, 2),), "Q5_0": (SCALE, (2, 4, 1)), "Q5_1": ((0, 2, 2), (4, 4, 1)),
    "Q8_0": (SCALE,), "Q8_1": ((0, 4, 2),), "Q1_0": (SCALE,), "Q2_0": (SCALE,),
    "Q2_K": ((80, 2, 2),), "Q3_K": ((108, 2, 1),), "Q4_K": ((0, 2, 2),), "Q5_K": ((0, 2, 2),), "Q6_K": ((208, 2, 1),),
    "Q8_K": ((0, 4, 1), (260, 2, 16)),
    "IQ2_XXS": (SCALE, *((6 + 8 * i, 4, 1) for i in range(8))), "IQ2_XS": (SCALE, (2, 2, 32)), "IQ2_S": (SCALE,),
    "IQ3_XXS": (SCALE, (66, 4, 8)), "IQ3_S": (SCALE,), "IQ1_S": (SCALE, (34, 2, 8)), "IQ1_M": ((48, 2, 4),),
    "IQ4_NL": (SCALE,), "IQ4_XS": (SCALE, (2, 2, 1)), "TQ1_0": ((52, 2, 1),), "TQ2_0": ((64, 2, 1),),
    "MXFP4": (), "NVFP4": (),
}  # fmt: skip


def swap_rows(form: Format, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy of rows (n, bytes of a row) in the other byte order. Raises FormatError for a format we don't know."""
    if form.elements is not None:
        fields: tuple[Field, ...] = ((0, form.block_bytes, 1),)
    elif form.name in FIELDS:
        fields = FIELDS[form.name]
    else:
        raise FormatError(f"the byte order of {form.name} blocks cannot be changed: their layout is not known")
    swapped = np.array(raw, np.uint8, order="C")
    blocks = swapped.reshape(-1, form.block_bytes)
    for first, size, count in fields:
        part = blocks[:, first : first + size * count]
        numbers = part.reshape(len(blocks), count, size)
        part[...] = numbers[:, :, ::-1].reshape(part.shape)
    return swapped
