"""BitNet: weights of -1, 0 and 1 under one scale, as transformers stores them.

    NAME.weight         uint8 (out / 4, in)    value plus one; bits 2k and 2k + 1 of row r are row r + k * out / 4
    NAME.weight_scale   float (1,)

weight = value / scale. Where config.json says `linear_class: autobitlinear` (Microsoft's), it is value * scale, and
values may be stored plainly. `quantization_mode: online` stores projections that are still to be rounded.
"""

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..spec import Floats, Tensors
from ..transforms import ternary
from .tensor_groups import Settings, Unpacked, decoded, part, refused, replaced

EACH = 4  # values of a byte


def unpacked(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return every NAME.weight in its own shape. Raises ModelError for scales that don't fit, and for unsupported
    variants.
    """
    if settings.get("use_rms_norm"):
        raise refused("bitnet", "a norm before each product")
    multiplies = str(settings.get("linear_class") or "bitlinear").lower() == "autobitlinear"
    if multiplies and str(settings.get("quantization_mode") or "offline").lower() == "online":
        return Unpacked({name: _rounded(name, tensor) for name, tensor in tensors.items()}, [])
    wholes = []
    for name, scale in tensors.items():
        if name.endswith(".weight_scale"):
            weight = part(tensors, name.removesuffix("_scale"), scale)
            if multiplies and f"{name.removesuffix('weight_scale')}bias" in tensors:
                raise refused("bitnet", f"{weight.name} has a bias, which would be scaled, too")
            wholes.append((_weight(weight, scale, np.multiply if multiplies else np.divide), [weight.name, name]))
    return replaced(tensors, wholes)


def _rounded(name: str, tensor: Tensor) -> Tensor:
    return ternary(tensor, {}) if name.endswith("_proj.weight") and len(tensor.shape) == 2 else tensor


def _weight(stored: Tensor, scale: Tensor, apply: np.ufunc) -> Tensor:
    """Return a weight from packed or plain values."""
    factor = scale.float32().reshape(-1)
    if len(factor) != 1 or not np.isfinite(factor[0]) or not factor[0]:
        raise ModelError(f"{scale.where} holds {factor[:4].tolist()}; one number other than 0 was expected")
    if len(stored.shape) != 2:
        raise ModelError(f"{stored.where} has shape {list(stored.shape)}; a matrix was expected")
    high, width = stored.shape

    def packed(start: int, stop: int) -> Floats:
        values = np.empty((stop - start, width), np.float32)
        while start < stop:  # a strip of rows that share a bit position
            strip, row = divmod(start, high)
            count = min(stop - start, high - row)
            codes = stored.raw(row, row + count) >> np.uint8(2 * strip) & np.uint8(3)
            values[len(values) - (stop - start) :][:count] = codes
            start += count
        return np.asarray(apply(values - np.float32(1), factor[0]))

    def plain(start: int, stop: int) -> Floats:
        return np.asarray(apply(stored.float32(start, stop), factor[0]))

    if stored.format.name == "U8":
        return decoded(stored.name, (EACH * high, width), packed, stored.origin)
    if stored.format.name not in ("F32", "F16", "BF16"):
        raise ModelError(f"{stored.where} is {stored.format.name}; U8, or plain floats, were expected")
    return decoded(stored.name, stored.shape, plain, stored.origin)
