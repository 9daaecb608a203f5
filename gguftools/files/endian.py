"""Byte order of tensor data: which bytes of a block are numbers of several bytes.

Fields are those of ggml's block structures, (first byte, bytes of a number, how many). A block whose numbers are all
single bytes (MXFP4, NVFP4, IQ1_M and IQ3_XXS but for the scale) is the same in both orders.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quants import Format, FormatError

Field = tuple[int, int, int]

SCALE = (0, 2, 1)
FIELDS: dict[str, tuple[Field, ...]] = {
    "Q4_0": (SCALE,), "Q4_1": ((0, 2, 2),), "Q5_0": (SCALE,), "Q5_1": ((0, 2, 2),), "Q8_0": (SCALE,),
    "Q8_1": ((0, 4, 2),), "Q1_0": (SCALE,), "Q2_0": (SCALE,), "Q2_K": ((80, 2, 2),), "Q3_K": ((108, 2, 1),),
    "Q4_K": ((0, 2, 2),), "Q5_K": ((0, 2, 2),), "Q6_K": ((208, 2, 1),), "Q8_K": ((0, 4, 1), (260, 2, 16)),
    "IQ2_XXS": (SCALE, (2, 2, 32)), "IQ2_XS": (SCALE, (2, 2, 32)), "IQ2_S": (SCALE,), "IQ3_XXS": (SCALE,),
    "IQ3_S": (SCALE,), "IQ1_S": (SCALE, (34, 2, 8)), "IQ1_M": (), "IQ4_NL": (SCALE,), "IQ4_XS": (SCALE, (2, 2, 1)),
    "TQ1_0": ((52, 2, 1),), "TQ2_0": ((64, 2, 1),), "MXFP4": (), "NVFP4": (),
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
