"""compressed-tensors (llm-compressor): each weight by the tensors that it is stored in, so that schemes may be mixed.

    weight, weight_scale[, weight_zero_point]    int- and float-quantized: 8 bits, see `scaled`
    weight_packed int32, weight_scale, weight_shape[, weight_zero_point, weight_g_idx]    pack-quantized, below
    weight_packed uint8, weight_scale E4M3, weight_global_scale    nvfp4-pack-quantized, see `nvfp4`
    weight_packed uint8, weight_scale uint8 (exponents)            mxfp4-pack-quantized, see `mxfp4`

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

from . import parts
from .mxfp4 import mxfp4
from .nvfp4 import nvfp4
from .parts import Floats, Settings, Unpacked
from .scaled import ACTIVATIONS, Blocks, companions, scaled_weights

PARTS = (
    "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale",
)  # fmt: skip
WEIGHT_FORMATS = (
    "dense", "naive-quantized", "int-quantized", "float-quantized", "pack-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip


def unpacked(settings: Settings, tensors: Mapping[str, Tensor]) -> Unpacked:
    """Every quantized weight as NAME.weight. Raises ModelError for formats that are not read."""
    _check(settings)
    found = scaled_weights(tensors, block_size(settings))
    wholes = [(whole, companions(name)) for name, whole in found.items()]
    for name, packed in tensors.items():
        if name.endswith(".weight_packed"):
            stem = name.removesuffix("weight_packed")
            read = integers if packed.format.name == "I32" else four_bit_floats
            wholes.append((read(settings, tensors, stem, packed), [stem + each for each in PARTS]))
    return parts.replaced(tensors, wholes, [name for name in tensors if name.endswith(ACTIVATIONS)])


def _check(settings: Settings) -> None:
    for name in (settings.get("format"), *(scheme.get("format") for scheme in schemes(settings))):
        if name is not None and name not in WEIGHT_FORMATS:
            raise parts.refused("compressed-tensors", f"format {name!r}")
    sparse = (settings.get("sparsity_config") or {}).get("format", "dense")
    if sparse != "dense":
        raise parts.refused("compressed-tensors", f"sparse weights in format {sparse!r}")


def schemes(settings: Settings) -> list[Mapping[str, Any]]:
    """The groups of layers that the config quantizes alike."""
    groups = settings.get("config_groups") or {}
    return [scheme for scheme in groups.values() if isinstance(scheme, Mapping)]


def arguments(settings: Settings, key: str) -> list[Any]:
    """What the schemes say about weights under `key`."""
    weights = [scheme.get("weights") for scheme in schemes(settings)]
    return [each[key] for each in weights if isinstance(each, Mapping) and each.get(key)]


def block_size(settings: Settings) -> Blocks | None:
    """Rows and columns that share a scale, where the config says so ([128, 128], or "128x128")."""
    found = next(iter(arguments(settings, "block_structure")), None)
    sides = found.split("x") if isinstance(found, str) else found
    return (int(sides[0]), int(sides[1])) if isinstance(sides, list) and len(sides) == 2 else None


def four_bit_floats(settings: Settings, tensors: Mapping[str, Tensor], stem: str, packed: Tensor) -> Tensor:
    """A weight of NVFP4 or MXFP4."""
    scale = parts.part(tensors, stem + "weight_scale", packed)
    if scale.format.name in ("U8", "F8_E8M0"):
        return mxfp4(stem + "weight", packed, scale)
    whole = parts.part(tensors, stem + "weight_global_scale", packed)
    divisor = whole.float32().reshape(-1)
    if len(divisor) != 1 or not divisor[0] > 0:
        raise ModelError(f"{whole.origin or whole.name} holds {divisor[:4].tolist()}; one positive number was expected")
    return nvfp4(stem + "weight", packed, scale, divisor[0], np.divide)


def integers(settings: Settings, tensors: Mapping[str, Tensor], stem: str, packed: Tensor) -> Tensor:
    """A weight of packed integers."""
    scale, shape = (parts.part(tensors, stem + each, packed) for each in ("weight_scale", "weight_shape"))
    rows, width = (int(n) for n in shape.elements().reshape(-1))
    count = scale.shape[-1] if len(scale.shape) == 2 else 1
    parts.check_words(packed)
    stored_rows, packed_width = packed.shape
    if stored_rows != rows or scale.size not in (1, rows * count):
        raise ModelError(
            f"{packed.origin or packed.name} has shape {list(packed.shape)} and scales {list(scale.shape)}; "
            f"the weight is {rows} x {width}"
        )
    bits = bits_of(settings, packed, packed_width, width)
    at = places(bits, width, packed_width)
    order = tensors.get(stem + "weight_g_idx")
    ordered = order is not None and order.size == width and int(order.elements().reshape(-1)[0]) >= 0
    size = next((n for n in arguments(settings, "group_size") if isinstance(n, int)), None)
    group = None if ordered else parts.groups_in_order(width, count, size)
    zero = tensors.get(stem + "weight_zero_point")
    middle = np.float32(1 << (bits - 1))

    def read(start: int, stop: int) -> Floats:
        result = np.empty((stop - start, width), np.float32)
        groups = group if group is not None else parts.checked_groups(order, count)  # type: ignore[arg-type]
        zeros = np.full((stop - start, count), middle)
        if zero is not None:
            zeros = zero_points(zero, bits, (rows, count), start, stop)
        scales = np.empty((stop - start, count), np.float32)
        scales[:] = scale.float32() if scale.size == 1 else scale.float32().reshape(rows, count)[start:stop]
        dequantize_rows(packed.elements(start, stop).view("<u4"), at, bits, groups, zeros, scales, result)
        return result

    return parts.decoded(stem + "weight", (rows, width), read, packed.origin)


def bits_of(settings: Settings, packed: Tensor, packed_width: int, width: int) -> int:
    """The width of the integers: among those of the config, the one that fits the shapes."""
    given = [int(n) for n in arguments(settings, "num_bits")] or [4, 8]
    fitting = sorted({bits for bits in given if packed_width in (words_across(bits, width), words_whole(bits, width))})
    if len(fitting) != 1:
        raise ModelError(
            f"{packed.origin or packed.name} has {packed_width} words for {width} values; integers of "
            f"{' or '.join(map(str, sorted(set(given))))} bits were expected"
        )
    return fitting[0]


def words_across(bits: int, width: int) -> int:
    """Words of a row whose values run across words."""
    return -(-width * bits // 32)


def words_whole(bits: int, width: int) -> int:
    """Words of a row with whole values only."""
    return -(-width // (32 // bits))


def places(bits: int, width: int, packed_width: int) -> NDArray[np.int64]:
    """The bit at which each value of a row begins."""
    value = np.arange(width)
    if packed_width == words_across(bits, width):
        return value * bits
    return value // (32 // bits) * 32 + value % (32 // bits) * bits


def zero_points(zero: Tensor, bits: int, shape: tuple[int, int], start: int, stop: int) -> Floats:
    """What is subtracted from the packed integers of rows start … stop: float32 (rows, groups)."""
    rows, count = shape
    if zero.format.name == "I8" and zero.size == rows * count:
        stored = zero.float32().reshape(rows, count)[start:stop]
        shifted: Floats = stored + np.float32(1 << (bits - 1))
        return shifted
    parts.check_words(zero)
    high, wide = zero.shape
    if wide != count or high not in (words_across(bits, rows), words_whole(bits, rows)):
        raise ModelError(f"{zero.origin or zero.name} has shape {list(zero.shape)} for {rows} rows of {count} groups")
    at = places(bits, rows, high)
    out = np.empty((count, stop - start), np.float32)
    unpack(np.ascontiguousarray(zero.elements().view("<u4").T), at[start:stop], bits, out)
    return np.ascontiguousarray(out.T)
