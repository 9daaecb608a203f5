"""Formats of an image or video model's tensors before quantization, as ComfyUI-GGUF's converter chooses them.

Weights of 16 bits keep their type, and F32 becomes F16. Vectors, small tensors, and what a family names is F32 unless
it was published in F16. Only matrices named "weight" may be quantized: readers take bare parameters and convolutions
over time as they are stored.
"""

import math

import numpy as np
from numpy.typing import NDArray

from quants import Format, FormatError, Tensor, format_named

from .spec import DiffusionFamily

FLOATS = ("F32", "F16", "BF16")
F16_LIMIT = 65520.0  # magnitudes from here on round to infinity
SMALL = 1024  # values; smaller tensors are stored in F32


def may_be_quantized(family: DiffusionFamily, name: str, shape: tuple[int, ...]) -> bool:
    """Return True if a recipe may change the format of a tensor; a single row is a vector. shape: in the file."""
    if len(shape) != 2 or shape[0] == 1 or not name.endswith("weight") or name.endswith("_norm.weight"):
        return False
    return not any(part in name for part in (*family.kept, *family.float32))


def plain_format(family: DiffusionFamily, tensor: Tensor, outtype: str) -> Format:
    """Return the format of a tensor that is not quantized. outtype: F32, F16, BF16, or AUTO for the rule above.

    tensor: in its published shape.
    """
    stored = tensor.format.name
    if stored in ("I32", "I64") or (stored == "F16" and outtype in ("AUTO", "F16")):
        return tensor.format
    if is_float32(family, tensor.name, tensor.shape):
        return format_named("F32")
    if outtype == "AUTO":
        return format_named("BF16" if stored == "BF16" else "F16")
    return format_named(outtype)


def is_float32(family: DiffusionFamily, name: str, shape: tuple[int, ...]) -> bool:
    """Return True for a tensor that is F32 in a file of any type, unless it was published in F16."""
    size = math.prod(shape)
    is_bare = not name.endswith((".weight", ".bias"))
    of_family = any(part in name for part in family.float32)
    decodes = len(shape) in (2, 4)  # ComfyUI-GGUF, in these layers; of other convolutions it takes bytes for values
    return size <= SMALL or is_bare or not decodes or of_family


def _check_range(tensor: Tensor, values: NDArray[np.float32], first_row: int) -> None:
    """Raise FormatError for a finite value that F16 has no number for; infinities are found when they are written."""
    large = np.abs(values) >= F16_LIMIT
    if large.any() and (wrong := np.argwhere(large & np.isfinite(values))).size:
        row, column = (int(each) for each in wrong[0])
        where = f"row {first_row + row}, column {column}"
        problem = f"{tensor.where} has the value {values[row, column]:g} in {where}, beyond the range of F16"
        raise FormatError(problem, "convert to BF16; a recipe can be made of that file")


def stored_as(tensor: Tensor, form: Format) -> Tensor:
    """Return a tensor whose rows are encoded in a format when they are read."""
    if form.name == tensor.format.name:
        return tensor

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        values = tensor.float32(start, stop)
        if form.name == "F16":
            _check_range(tensor, values, start)
        return form.encode(values)

    return Tensor(tensor.name, tensor.shape, form, read, tensor.origin)
