"""Doubles and integers that files may hold: they are decoded, but weights are never encoded in them."""

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from ..format import Format


def encode(form: Format, rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """Raise FormatError: nothing is quantized to these."""
    raise FormatError(f"{form.name} tensors can be copied, but nothing can be encoded as {form.name}")


def decode(form: Format, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return uint8 (n, k * width) → float32 (n, width), each value rounded to the nearest float32; past float32:
    infinity.
    """
    with np.errstate(over="ignore"):
        return raw.view(form.block).astype(np.float32)
