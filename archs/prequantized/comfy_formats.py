"""The formats of ComfyUI's quantized layers, by the names that their settings give (comfy-kitchen defines the layouts).

    float8_e4m3fn, float8_e5m2    weight * weight_scale, which is one number or one for each output
    int8_tensorwise               the same for I8; "convrot": rotated groups of columns, see `quants.kernels.hadamard`
    mxfp8                         E4M3 with a power of two for each 32 columns, in tiles
    nvfp4                         E2M1 in pairs, the even column in the upper half; E4M3 for each 16 columns, in tiles;
                                  weight_scale_2 multiplies all
    convrot_w4a4                  signed integers in pairs, the even column in the lower half, * weight_scale; rotated
    asym_w4a8_int8                codes of 4 or 6 bits, see `grouped`; rotated
    awq_w4a16                     integers 0 … 15 in pairs: (q - 8) * weight_scale + weight_zeros, (groups, outputs)
    nf4                           bitsandbytes' blocks: weight_scale is absmax, weight_code the table

Rows and columns of nvfp4 and mxfp8 are padded to multiples of 16 and 32. A bias tells the number of rows.
Tiles: see `comfy_scales`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError
from quants.kernels.byte_codes import decode_codes
from quants.kernels.hadamard import rotate_groups

from ..spec import Floats, Tensors
from .bitsandbytes import four_bits
from .comfy_scales import (
    Bytes,
    ReadBytes,
    ReadScales,
    check_floats,
    e4m3,
    powers,
    row_scales,
    small_floats,
    tiled_bytes,
)
from .comfy_settings import option
from .fp4 import E2M1, nvfp4
from .scaled import input_scaled
from .tensor_groups import Settings, columns, decoded, part

FLOAT8 = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
ROTATED = 256  # columns that are rotated together, unless the settings say otherwise
LARGEST_INT8 = np.float32(127)


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


@dataclass(frozen=True)
class Form:
    """How a format's weights are read. needed, optional: the tensors of a layer that it uses, besides the weight."""

    read: Callable[[Layer], Tensor]
    needed: tuple[str, ...] = ("weight_scale",)
    optional: tuple[str, ...] = ()


def float8(layer: Layer, scale: str = ".weight_scale") -> Tensor:
    """Return 8-bit floats times their scales."""
    name = layer.settings.get("format")
    weight = layer.matrix(*([FLOAT8[name]] if name else FLOAT8.values()))
    scales = row_scales(layer.part(scale.removeprefix(".")), weight.shape[:-1])
    return _of_codes(weight, weight.shape, weight.raw, (_values(weight), scales))


def int8(layer: Layer) -> Tensor:
    """Return 8-bit integers times their scales, rotated back where they were rotated."""
    weight = layer.matrix("I8")
    scales = row_scales(layer.part("weight_scale"), weight.shape[:-1])
    rotated = _rotation(layer, weight.width) if option(layer.settings, "convrot", False) else None
    return _of_codes(weight, weight.shape, weight.raw, (_values(weight), scales), rotated)


def mxfp8(layer: Layer) -> Tensor:
    """Return 8-bit floats times a power of two for each 32 columns."""
    weight = layer.matrix("F8_E4M3")
    count = _groups(weight, weight.width, 32)
    tiles = tiled_bytes(layer.part("weight_scale"), weight.shape[:-1], count, ("F8_E8M0", "U8"))
    scale = powers()
    shape = (*_outputs(layer, weight, 32), weight.width)
    return _of_codes(weight, shape, weight.raw, (_values(weight), lambda start, stop: scale[tiles(start, stop)]))


def four_bit_floats(layer: Layer) -> Tensor:
    """Return an nvfp4 weight: ggml's blocks where these hold the same values, or float32."""
    stored = layer.matrix("U8")
    width = 2 * stored.width
    count = _groups(stored, width, 16)
    scale, second = layer.part("weight_scale"), layer.part("weight_scale_2")
    tiles = tiled_bytes(scale, stored.shape[:-1], count, ("F8_E4M3", "U8"))
    factors = row_scales(second, stored.shape[:-1])
    outputs = _outputs(layer, stored, 16)
    weight = None
    if second.size == 1 and scale.format.name == "F8_E4M3":
        packed = replace(stored, shape=(*outputs, width // 2), read=lambda start, stop: _swapped(stored, start, stop))
        plain = replace(scale, shape=(*outputs, count), read=tiles)
        weight = nvfp4(stored.name, packed, plain, second.float32().reshape(-1)[0])
    if weight is None or weight.format.name == "F32":
        values = e4m3()

        def scales(start: int, stop: int) -> Floats:
            return values[tiles(start, stop)] * factors(start, stop)

        def codes(start: int, stop: int) -> Bytes:
            return _halves(stored.raw(start, stop), upper_first=True)

        weight = _of_codes(stored, (*outputs, width), codes, (_table(E2M1), scales))
    before = layer.optional("pre_quant_scale")
    return input_scaled(weight, before) if before is not None else weight


def four_bit_integers(layer: Layer) -> Tensor:
    """Return a convrot_w4a4 weight."""
    weight = layer.matrix("I8", "U8")
    shape = (*weight.shape[:-1], 2 * weight.width)
    scales = row_scales(layer.part("weight_scale"), weight.shape[:-1])
    table = _table(np.r_[0:8, -8:0])
    rotated = _rotation(layer, shape[-1])
    return _of_codes(weight, shape, lambda i, j: _halves(weight.raw(i, j)), (table, scales), rotated)


def grouped(layer: Layer) -> Tensor:
    """Return an asym_w4a8_int8 weight, which the GEMM sees as 8-bit integers.

        integer = clip(round(level * weight_s_rel), -127, 127)      for each group of `group_size` columns
        weight  = integer * weight_s_channel + weight_correction    for each output; (groups, outputs)

    level: weight_codebook[code] or code - 8, where rows are half as many bytes, the even column in the lower half; or
    code - 32, where a quarter follows with the upper 2 of 6 bits of each code, the first of 4 columns in the lowest.
    """
    weight, ratios = layer.matrix("I8", "U8"), layer.part("weight_s_rel")
    channels = layer.part("weight_s_channel")
    size = option(layer.settings, "group_size", 16)
    width = ratios.width * size
    bits = 8 * weight.width // width if width and 8 * weight.width % width == 0 else 0
    if bits not in (4, 6) or width % 4 or ratios.shape != (*weight.shape[:-1], width // size):
        shapes = f"shape {list(weight.shape)} and scales {list(ratios.shape)} of groups of {size}"
        raise ModelError(f"{weight.where} has {shapes}; codes of 4 or 6 bits were expected")
    book, correction = layer.optional("weight_codebook"), layer.optional("weight_correction")
    if bits == 6 and (book is not None or correction is not None):
        raise ModelError(f"{weight.where} has codes of 6 bits; they have neither a codebook nor a correction")
    half = 1 << (bits - 1)
    levels = np.arange(-half, half) if book is None else layer.part("weight_codebook", (16,)).float32()
    outputs = row_scales(channels, weight.shape[:-1])
    shift = None if correction is None else _by_output(layer, "weight_correction", width // size)
    rotated = _rotation(layer, width)

    def codes(start: int, stop: int) -> Bytes:
        raw = weight.raw(start, stop)
        return _halves(raw) if bits == 4 else _six_bits(raw, width)

    def finish(values: Floats, start: int) -> None:
        np.rint(values, out=values)
        np.clip(values, -LARGEST_INT8, LARGEST_INT8, out=values)
        values *= outputs(start, start + len(values))
        if shift is not None:
            by_group = values.reshape(len(values), width // size, size)
            by_group += shift(start, start + len(values))[:, :, None]
        rotated(values, start)

    shape = (*weight.shape[:-1], width)
    return _of_codes(weight, shape, codes, (_table(levels), small_floats(ratios)), finish)


def with_zeros(layer: Layer) -> Tensor:
    """Return an awq_w4a16 weight."""
    weight = layer.matrix("I8", "U8")
    width, size = 2 * weight.width, option(layer.settings, "group_size", 64)
    count = _groups(weight, width, size)
    scales, zeros = (_by_output(layer, suffix, count) for suffix in ("weight_scale", "weight_zeros"))

    def shift(values: Floats, start: int) -> None:
        by_group = values.reshape(len(values), count, size)
        by_group += zeros(start, start + len(values))[:, :, None]

    table = _table(np.arange(16) - 8)
    return _of_codes(
        weight, (*weight.shape[:-1], width), lambda i, j: _halves(weight.raw(i, j)), (table, scales), shift
    )


def table_of_bitsandbytes(layer: Layer) -> Tensor:
    """Return an nf4 weight."""
    weight, settings = layer.weight, layer.settings
    if not settings.get("shape") or settings.get("double_quant"):
        raise ModelError(f"{weight.where} is nf4 {dict(settings)}; a shape and plain scales were expected")
    absmax, code = layer.part("weight_scale"), layer.part("weight_code", (16,))
    check_floats(absmax, ("F32",))
    tensors = {f"{weight.name}.absmax": absmax, f"{weight.name}.quant_map": code}
    return four_bits(tensors, weight, settings)


FORMATS: Mapping[str, Form] = {
    "float8_e4m3fn": Form(float8),
    "float8_e5m2": Form(float8),
    "int8_tensorwise": Form(int8),
    "mxfp8": Form(mxfp8),
    "nvfp4": Form(four_bit_floats, ("weight_scale", "weight_scale_2"), ("pre_quant_scale",)),
    "convrot_w4a4": Form(four_bit_integers),
    "asym_w4a8_int8": Form(grouped, ("weight_s_rel", "weight_s_channel"), ("weight_codebook", "weight_correction")),
    "awq_w4a16": Form(with_zeros, ("weight_scale", "weight_zeros")),
    "nf4": Form(table_of_bitsandbytes, ("weight_scale", "weight_code")),
}


def _of_codes(
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


def _rotation(layer: Layer, width: int) -> Callable[[Floats, int], None]:
    """Return what rotates the groups of columns back."""
    size = option(layer.settings, "convrot_groupsize", ROTATED)
    if width % size or size & (size - 1) or size.bit_length() % 2 == 0:
        what = f"rotated groups of {size} columns in rows of {width}"
        raise ModelError(f"{layer.weight.where} has {what}; a power of 4 that divides them was expected")
    return lambda values, start: rotate_groups(values.reshape(-1), size)


def _outputs(layer: Layer, weight: Tensor, multiple: int) -> tuple[int, ...]:
    """Return a weight's dimensions but the last; a matrix without the rows that were added to make a multiple."""
    bias = layer.optional("bias")
    if bias is None or len(weight.shape) != 2 or bias.shape == (weight.rows,):
        return weight.shape[:-1]
    if len(bias.shape) != 1 or -(-bias.size // multiple) * multiple != weight.rows:
        shapes = f"shape {list(bias.shape)}, its weight {weight.rows} rows"
        raise ModelError(
            f"{bias.where} has {shapes}; as many, or some less than a multiple of {multiple}, was expected"
        )
    return bias.shape


def _by_output(layer: Layer, suffix: str, count: int) -> ReadScales:
    """Return a tensor (groups, outputs) as the numbers of outputs start … stop, (outputs, groups)."""
    tensor = layer.part(suffix, (count, layer.weight.rows))
    check_floats(tensor)
    return columns(tensor)


def _groups(weight: Tensor, width: int, size: int) -> int:
    """Return the number of groups of `size` columns in a row. Raises ModelError if they are not whole."""
    if width % size:
        raise ModelError(f"{weight.where} has rows of {width} values; a multiple of {size} was expected")
    return width // size


def _halves(pairs: Bytes, upper_first: bool = False) -> Bytes:
    """Return the codes of 4 bits of rows of bytes, (rows, 2 * bytes)."""
    codes = np.empty((len(pairs), 2 * pairs.shape[1]), np.uint8)
    np.right_shift(pairs, 4, out=codes[:, 0 if upper_first else 1 :: 2])
    np.bitwise_and(pairs, 15, out=codes[:, 1 if upper_first else 0 :: 2])
    return codes


def _swapped(packed: Tensor, start: int, stop: int) -> Bytes:
    """Return rows with the halves of each byte exchanged."""
    raw = packed.raw(start, stop)
    swapped: Bytes = raw >> np.uint8(4) | raw << np.uint8(4)
    return swapped


def _six_bits(raw: Bytes, width: int) -> Bytes:
    codes = _halves(raw[:, : width // 2])
    for column in range(4):
        codes[:, column::4] |= (raw[:, width // 2 :] >> (2 * column) & 3) << 4
    return codes


def _table(values: Any) -> Floats:
    """Return the values of all bytes; those beyond the given ones don't occur."""
    return np.resize(np.asarray(values, np.float32), 256)


def _values(weight: Tensor) -> Floats:
    """Return the value of each byte in a weight's format."""
    values: Floats = weight.format.decode(np.arange(256, dtype=np.uint8)[None])[0]
    return values
