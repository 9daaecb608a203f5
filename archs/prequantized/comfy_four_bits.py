"""Weights of 4 and 6 bits in ComfyUI's files, see `comfy_formats`."""

from dataclasses import replace
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..spec import Floats
from .bitsandbytes import four_bits
from .comfy_layer import Layer, groups, of_codes, rotation, without_padding
from .comfy_scales import Bytes, ReadScales, check_floats, e4m3, row_scales, small_floats, tiled_bytes
from .comfy_settings import option
from .fp4 import E2M1, nvfp4
from .scaled import input_scaled
from .tensor_groups import columns

LARGEST_INT8 = np.float32(127)


def four_bit_floats(layer: Layer) -> Tensor:
    """Return an nvfp4 weight: ggml's blocks where these hold the same values, or float32."""
    stored = layer.matrix("U8")
    outputs, width = stored.shape[:-1], 2 * stored.width
    count = groups(stored, width, 16)
    scale, second = layer.part("weight_scale"), layer.part("weight_scale_2")
    tiles = tiled_bytes(scale, outputs, count, ("F8_E4M3", "U8"))
    factors, values = row_scales(second, outputs), e4m3()

    def scales(start: int, stop: int) -> Floats:
        return values[tiles(start, stop)] * factors(start, stop)

    def codes(start: int, stop: int) -> Bytes:
        return _halves(stored.raw(start, stop), upper_first=True)

    weight = of_codes(stored, (*outputs, width), codes, (_table(E2M1), scales))
    if second.size == 1 and scale.format.name == "F8_E4M3":
        packed = replace(stored, read=lambda start, stop: _swapped(stored, start, stop))
        plain = replace(scale, shape=(*outputs, count), read=tiles)
        blocks = nvfp4(stored.name, packed, plain, second.float32().reshape(-1)[0])
        weight = blocks if blocks.format.name == "NVFP4" else weight
    weight = without_padding(layer, weight, 16)
    before = layer.optional("pre_quant_scale")
    return input_scaled(weight, before) if before is not None else weight


def four_bit_integers(layer: Layer) -> Tensor:
    """Return a convrot_w4a4 weight."""
    weight = layer.matrix("I8", "U8")
    shape = (*weight.shape[:-1], 2 * weight.width)
    scales = row_scales(layer.part("weight_scale"), weight.shape[:-1])
    table = _table(np.r_[0:8, -8:0])
    rotated = rotation(layer, shape[-1])
    return of_codes(weight, shape, lambda i, j: _halves(weight.raw(i, j)), (table, scales), rotated)


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
    rotated = rotation(layer, width)

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
    return of_codes(weight, shape, codes, (_table(levels), small_floats(ratios)), finish)


def with_zeros(layer: Layer) -> Tensor:
    """Return an awq_w4a16 weight."""
    weight = layer.matrix("I8", "U8")
    width, size = 2 * weight.width, option(layer.settings, "group_size", 64)
    count = groups(weight, width, size)
    scales, zeros = (_by_output(layer, suffix, count) for suffix in ("weight_scale", "weight_zeros"))

    def shift(values: Floats, start: int) -> None:
        by_group = values.reshape(len(values), count, size)
        by_group += zeros(start, start + len(values))[:, :, None]

    table = _table(np.arange(16) - 8)
    return of_codes(weight, (*weight.shape[:-1], width), lambda i, j: _halves(weight.raw(i, j)), (table, scales), shift)


def table_of_bitsandbytes(layer: Layer) -> Tensor:
    """Return an nf4 weight."""
    weight, settings = layer.weight, layer.settings
    if not settings.get("shape") or settings.get("double_quant"):
        raise ModelError(f"{weight.where} is nf4 {dict(settings)}; a shape and plain scales were expected")
    absmax, code = layer.part("weight_scale"), layer.part("weight_code", (16,))
    check_floats(absmax, ("F32",))
    tensors = {f"{weight.name}.absmax": absmax, f"{weight.name}.quant_map": code}
    return four_bits(tensors, weight, settings)


def _by_output(layer: Layer, suffix: str, count: int) -> ReadScales:
    """Return a tensor (groups, outputs) as the numbers of outputs start … stop, (outputs, groups)."""
    tensor = layer.part(suffix, (count, layer.weight.rows))
    check_floats(tensor)
    return columns(tensor)


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
