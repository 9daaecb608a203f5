"""A quantized layer of a file, and what its formats share: codes of a byte, rotated columns, padding."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from quants import Tensor
from quants.errors import ModelError
from quants.kernels.byte_codes import decode_codes
from quants.kernels.hadamard import rotate_groups

from ..spec import Floats, Tensors
from .comfy_scales import ReadBytes, ReadScales
from .comfy_settings import option
from .tensor_groups import Settings, decoded, part

ROTATED = 256  # columns that are rotated together, unless the settings say otherwise


@dataclass(frozen=True)
class Layer:
    """A layer of a file: its name without ".weight", how it is quantized, and the file's tensors."""

    name: str
    settings: Settings
    tensors: Tensors

    @property
    def weight(self) -> Tensor:
        return self.tensors[f"{self.name}.weight"]

    def part(self, suffix: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return NAME.suffix. Raises ModelError if it is missing or of another shape."""
        return part(self.tensors, f"{self.name}.{suffix}", self.weight, shape)

    def optional(self, suffix: str) -> Tensor | None:
        return self.tensors.get(f"{self.name}.{suffix}")

    def matrix(self, *formats: str) -> Tensor:
        """Return the weight. Raises ModelError for anything but a matrix, or several of one shape, in these formats."""
        weight = self.weight
        if weight.format.name not in formats or len(weight.shape) < 2 or not weight.size:
            stored = f"{weight.where} is {weight.format.name} {list(weight.shape)}"
            raise ModelError(f"{stored}; a matrix of {' or '.join(formats)} was expected{self._named()}")
        return weight

    def _named(self) -> str:
        return f" for {self.settings['format']!r}" if self.settings.get("format") else ""


def of_codes(
    weight: Tensor,
    shape: tuple[int, ...],
    codes: ReadBytes,
    meaning: tuple[Floats, ReadScales],
    finish: Callable[[Floats, int], None] | None = None,
) -> Tensor:
    """Return a float32 tensor of `shape`: table[code] * scale. meaning: the table, 256 values, and the scales.

    finish: what changes the values of rows from a given one on in place.
    """
    table, scales = meaning

    def read(start: int, stop: int) -> Floats:
        values = np.empty((stop - start, shape[-1]), np.float32)
        decode_codes(np.ascontiguousarray(codes(start, stop)), table, np.ascontiguousarray(scales(start, stop)), values)
        if finish is not None:
            finish(values, start)
        return values

    return decoded(weight.name, shape, read, weight.origin)


def rotation(layer: Layer, width: int) -> Callable[[Floats, int], None]:
    """Return what rotates the groups of columns back."""
    size = option(layer.settings, "convrot_groupsize", ROTATED)
    if width % size or size & (size - 1) or size.bit_length() % 2 == 0:
        what = f"rotated groups of {size} columns in rows of {width}"
        raise ModelError(f"{layer.weight.where} has {what}; a power of 4 that divides them was expected")
    return lambda values, start: rotate_groups(values.reshape(-1), size)


def without_padding(layer: Layer, weight: Tensor, multiple: int) -> Tensor:
    """Return a weight without the rows and columns that were added to make multiples of a number.

    The settings' "orig_shape" says how many are its own; the length of a bias says it of the rows. Without these the
    weight is as it is stored. Raises ModelError for numbers that don't go with the stored shape.
    """
    named, bias = option(layer.settings, "orig_shape"), layer.optional("bias")
    if len(weight.shape) != 2 or (named is None and bias is None):
        return weight
    shape = (bias.size, weight.width) if named is None and bias is not None else tuple(named)
    padded = tuple(-(-n // multiple) * multiple for n in shape)
    if weight.shape not in (shape, padded) or (bias is not None and bias.shape != shape[:1]):
        stored = f"{list(weight.shape)}" + (f" and a bias of {list(bias.shape)}" if bias is not None else "")
        raise ModelError(f"{weight.where} has {stored}; {list(shape)} in multiples of {multiple} was expected")
    if weight.width == shape[-1]:
        return replace(weight, shape=shape)
    width = shape[-1]
    return decoded(weight.name, shape, lambda start, stop: weight.float32(start, stop)[:, :width], weight.origin)


def groups(weight: Tensor, width: int, size: int) -> int:
    """Return the number of groups of `size` columns in a row. Raises ModelError if they are not whole."""
    if width % size:
        raise ModelError(f"{weight.where} has rows of {width} values; a multiple of {size} was expected")
    return width // size
