"""compressed-tensors (llm-compressor): each weight by the tensors that it is stored in, so that schemes may be mixed.

    weight, weight_scale[, weight_zero_point]    int- and float-quantized: 8 bits, see `scaled`
    weight_packed int32, weight_scale, weight_shape[, weight_zero_point, weight_g_idx]    pack-quantized, below
    weight_packed uint8, weight_scale E4M3, weight_global_scale    nvfp4-pack-quantized, see `fp4`
    weight_packed uint8, weight_scale uint8 (exponents)            mxfp4-pack-quantized, see `fp4`

Packed integers: (rows, words), plus 2^(bits - 1), lowest bits first. Of widths that do not divide 32, older versions
put as many whole ones into a word as fit; newer ones run across words. Zero points are int8 (rows, groups), or packed
alike along rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor
from quants.errors import ModelError
from quants.kernels.packed_integers import dequantize_rows, unpack

from ..spec import Floats, Tensors
from . import tensor_groups
from .fp4 import mxfp4, nvfp4
from .scaled import companions, scaled_weights, without_activations
from .tensor_groups import Settings, Unpacked

PARTS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale")
WEIGHT_FORMATS = (
    "dense",
    "naive-quantized",
    "int-quantized",
    "float-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)


def unpacked(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return every quantized weight as NAME.weight. Raises ModelError for unsupported formats."""
    schemes = [each for each in (settings.get("config_groups") or {}).values() if isinstance(each, Mapping)]
    for name in (each.get("format") for each in (settings, *schemes)):
        if name is not None and name not in WEIGHT_FORMATS:
            raise tensor_groups.refused("compressed-tensors", f"format {name!r}")
    sparse = (settings.get("sparsity_config") or {}).get("format", "dense")
    if sparse != "dense":
        raise tensor_groups.refused("compressed-tensors", f"sparse weights in format {sparse!r}")
    arguments = [weights for each in schemes if isinstance(weights := each.get("weights"), Mapping)]
    sides: Any = next(
        iter(_values_of(arguments, "block_structure")), ()
    )  # that share a scale: [128, 128], or "128x128"
    sides = sides.split("x") if isinstance(sides, str) else sides
    scaled = scaled_weights(tensors, [int(side) for side in sides] if len(sides) == 2 else None)
    wholes = [(whole, companions(name)) for name, whole in scaled.items()]
    for name, packed in tensors.items():
        if name.endswith(".weight_packed"):
            stem = name.removesuffix("weight_packed")
            is_integer = packed.format.name == "I32"
            whole = _integers(arguments, tensors, stem, packed) if is_integer else _floats(tensors, stem, packed)
            wholes.append((whole, [stem + each for each in PARTS]))
    return without_activations(tensors, wholes)


def _values_of(arguments: list[Mapping[str, Any]], key: str) -> list[Any]:
    """Return the config's values of `key` for weights, for each group of layers that it quantizes alike."""
    return [each[key] for each in arguments if each.get(key)]


def _floats(tensors: Tensors, stem: str, packed: Tensor) -> Tensor:
    """Return a weight of NVFP4 or MXFP4."""
    scale = tensor_groups.part(tensors, stem + "weight_scale", packed)
    if scale.format.name in ("U8", "F8_E8M0"):
        return mxfp4(stem + "weight", packed, scale)
    whole = tensor_groups.part(tensors, stem + "weight_global_scale", packed)
    divisor = whole.float32().reshape(-1)
    if len(divisor) != 1 or not divisor[0] > 0:
        raise ModelError(f"{whole.where} holds {divisor[:4].tolist()}; one positive number was expected")
    return nvfp4(stem + "weight", packed, scale, divisor[0], np.divide)


def _integers(arguments: list[Mapping[str, Any]], tensors: Tensors, stem: str, packed: Tensor) -> Tensor:
    """Return a weight of packed integers: of the config's widths, the one that fits the shapes."""
    scale, shape = (tensor_groups.part(tensors, stem + each, packed) for each in ("weight_scale", "weight_shape"))
    rows, width = (int(n) for n in shape.elements().reshape(-1))
    count = scale.shape[-1] if len(scale.shape) == 2 else 1
    tensor_groups.check_words(packed)
    stored_rows, across = packed.shape
    if stored_rows != rows or scale.size not in (1, rows * count):
        shapes = f"shape {list(packed.shape)} and scales {list(scale.shape)}"
        raise ModelError(f"{packed.where} has {shapes}; the weight is {rows} x {width}")
    given = sorted({int(n) for n in _values_of(arguments, "num_bits")} or {4, 8})
    fitting = [(bits, at) for bits in given if (at := _places(bits, width, across)) is not None]
    if len(fitting) != 1:
        wanted = f"integers of {' or '.join(map(str, given))} bits were expected"
        raise ModelError(f"{packed.where} has {across} words for {width} values; {wanted}")
    [(bits, at)] = fitting
    order = tensors.get(stem + "weight_g_idx")
    if order is not None and (order.size != width or int(order.elements().reshape(-1)[0]) < 0):
        order = None
    size = next((n for n in _values_of(arguments, "group_size") if isinstance(n, int)), None)
    in_order = tensor_groups.groups_in_order(width, count, size) if order is None else None
    zero = tensors.get(stem + "weight_zero_point")

    def read(start: int, stop: int) -> Floats:
        zeros = np.full((stop - start, count), np.float32(1 << (bits - 1)))
        if zero is not None:
            zeros = _zero_points(zero, bits, (rows, count), start, stop)
        scales = np.empty((stop - start, count), np.float32)
        scales[:] = scale.float32() if scale.size == 1 else scale.float32().reshape(rows, count)[start:stop]
        groups = tensor_groups.checked_groups(order, count) if order is not None else in_order
        result = np.empty((stop - start, width), np.float32)
        dequantize_rows(packed.elements(start, stop).view("<u4"), at, bits, groups, zeros, scales, result)
        return result

    return tensor_groups.decoded(stem + "weight", (rows, width), read, packed.origin)


def _places(bits: int, count: int, words: int) -> NDArray[np.int64] | None:
    """Return the bit at which each of `count` values begins, across words or whole in each; None if their number does
    not fit.
    """
    value, whole = np.arange(count), 32 // bits
    if words == -(-count * bits // 32):
        return value * bits
    return value // whole * 32 + value % whole * bits if words == -(-count // whole) else None


def _zero_points(zero: Tensor, bits: int, shape: tuple[int, int], start: int, stop: int) -> Floats:
    """Return the zero points of rows start … stop: float32 (rows, groups)."""
    rows, count = shape
    if zero.format.name == "I8" and zero.size == rows * count:
        shifted: Floats = zero.float32().reshape(shape)[start:stop] + np.float32(1 << (bits - 1))
        return shifted
    tensor_groups.check_words(zero)
    at = _places(bits, rows, zero.shape[0])
    if zero.shape[1] != count or at is None:
        raise ModelError(f"{zero.where} has shape {list(zero.shape)} for {rows} rows of {count} groups")
    out = np.empty((count, stop - start), np.float32)
    unpack(np.ascontiguousarray(zero.elements().view("<u4").T), at[start:stop], bits, out)
    return np.ascontiguousarray(out.T)
