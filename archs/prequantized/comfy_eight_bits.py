"""Weights of 8 bits in ComfyUI's files, see `comfy_formats`."""

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..spec import Floats
from .comfy_layer import Layer, groups, of_codes, rotation, without_padding
from .comfy_scales import block_scales, powers, row_scales, tiled_bytes
from .comfy_settings import option

FLOAT8 = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fn_rowwise": "F8_E4M3"}


def float8(layer: Layer, scale: str = ".weight_scale") -> Tensor:
    """Return 8-bit floats times their scales."""
    name = layer.settings.get("format")
    weight = layer.matrix(*([FLOAT8[name]] if name else sorted(set(FLOAT8.values()))))
    scales = row_scales(layer.part(scale.removeprefix(".")), weight.shape[:-1])
    return of_codes(weight, weight.shape, weight.raw, (_values(weight), scales))


def int8(layer: Layer) -> Tensor:
    """Return 8-bit integers times their scales, rotated back where they were rotated."""
    weight = layer.matrix("I8")
    scales = row_scales(layer.part("weight_scale"), weight.shape[:-1])
    rotated = rotation(layer, weight.width) if option(layer.settings, "convrot", False) else None
    return of_codes(weight, weight.shape, weight.raw, (_values(weight), scales), rotated)


def blocks_of_float8(layer: Layer) -> Tensor:
    """Return 8-bit floats with a scale for each square."""
    return _blocks(layer, layer.matrix("F8_E4M3"))


def blocks_of_int8(layer: Layer) -> Tensor:
    """Return 8-bit integers with a scale for each square."""
    return _blocks(layer, layer.matrix("I8"))


def _blocks(layer: Layer, weight: Tensor) -> Tensor:
    size = option(layer.settings, "group_size")
    if size is None:
        raise ModelError(f"{weight.where} has no group_size in its settings; the side of its blocks was expected")
    scales = block_scales(layer.part("weight_scale"), weight.shape, size)
    return of_codes(weight, weight.shape, weight.raw, (_values(weight), scales))


def mxfp8(layer: Layer) -> Tensor:
    """Return 8-bit floats times a power of two for each 32 columns."""
    weight = layer.matrix("F8_E4M3")
    count = groups(weight, weight.width, 32)
    tiles = tiled_bytes(layer.part("weight_scale"), weight.shape[:-1], count, ("F8_E8M0", "U8"))
    scale = powers()
    meaning = _values(weight), lambda start, stop: scale[tiles(start, stop)]
    return without_padding(layer, of_codes(weight, weight.shape, weight.raw, meaning), 32)


def _values(weight: Tensor) -> Floats:
    """Return the value of each byte in a weight's format."""
    values: Floats = weight.format.decode(np.arange(256, dtype=np.uint8)[None])[0]
    return values
