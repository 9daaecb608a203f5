"""Tensors and the block formats that encode them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import FormatError, GgufToolsError
from .format import Format, format_named, format_of_type
from .tensor import Tensor, from_array

__all__ = [
    "Format",
    "FormatError",
    "GgufToolsError",
    "Tensor",
    "decode",
    "encode",
    "format_named",
    "format_of_type",
    "from_array",
]


def encode(name: str, rows: ArrayLike, importance: ArrayLike | None = None) -> NDArray[np.uint8]:
    """Encode float32 rows (n, width) in the format `name`: uint8 (n, bytes of a row), ggml's bytes.

    importance: None, or float32 (width,), the weight of an error in each column.
    Raises FormatError for an unknown format, a width the format cannot take, or missing importance weights.
    """
    form = format_named(name)
    values = np.ascontiguousarray(rows, np.float32)
    if values.ndim != 2:
        raise FormatError(f"encode takes rows of shape (n, width), not {values.shape}")
    row_bytes = form.row_bytes(values.shape[1])
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    if weights is not None and weights.shape != values.shape[1:]:
        width = values.shape[1]
        raise FormatError(f"importance has shape {weights.shape}; rows of {width} values need ({width},)")
    if weights is None and form.needs_importance:
        raise FormatError(f"{form.name} cannot be encoded without importance weights")
    if not values.size:
        return np.empty((len(values), row_bytes), np.uint8)
    return form.encode(values, weights)


def decode(name: str, raw: ArrayLike) -> NDArray[np.float32]:
    """Decode uint8 (n, bytes of a row) of the format `name` to float32 (n, width).

    Raises FormatError for an unknown format or a row that is not whole blocks.
    """
    form = format_named(name)
    data = np.ascontiguousarray(raw, np.uint8)
    if data.ndim != 2 or data.shape[1] % form.block_bytes:
        raise FormatError(f"decode takes uint8 (n, k * {form.block_bytes}) for {form.name}, not {data.shape}")
    if not data.size:
        return np.empty((len(data), data.shape[1] // form.block_bytes * form.block_size), np.float32)
    return form.decode(data)
