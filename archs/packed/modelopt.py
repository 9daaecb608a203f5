"""NVIDIA ModelOpt: NVFP4 and 8-bit weights, each recognised by the tensors that it is stored in.

    weight uint8, weight_scale F8_E4M3, weight_scale_2 float32 ()    NVFP4, see `nvfp4`; the factor is weight_scale_2
    weight F8_E4M3 or I8, weight_scale                               see `scaled`
    pre_quant_scale (in,)    what AWQ multiplies the input with, where no norm took it in; moved into the columns

Which algorithm it was is in config.json or, in older exports, in hf_quant_config.json beside it.
"""

from collections.abc import Mapping

from quants import Tensor
from quants.errors import ModelError

from .nvfp4 import nvfp4
from .parts import Floats, Settings, Unpacked, decoded, part, refused, replaced
from .scaled import ACTIVATIONS, companions, scaled_weights

SECOND = "_scale_2"


def unpacked(settings: Settings, tensors: Mapping[str, Tensor]) -> Unpacked:
    """Every quantized weight under its name. Raises ModelError for algorithms that are not read."""
    found = scaled_weights(tensors, None)
    for name, tensor in tensors.items():
        packed = tensors.get(name.removesuffix(SECOND)) if name.endswith(SECOND) else None
        if packed is not None:
            found[packed.name] = four_bits(tensors, packed, tensor)
    left = [t for n, t in tensors.items() if t.format.name == "U8" and f"{n}_scale" in tensors and n not in found]
    if left:
        raise refused("modelopt", f"{settings.get('quant_algo')}, {left[0].name!r} has neither E4M3 nor I8")
    wholes = []
    for name, weight in found.items():
        before = name.removesuffix("weight") + "pre_quant_scale"
        whole = input_scaled(weight, tensors[before]) if before in tensors else weight
        wholes.append((whole, [*companions(name), name + SECOND, before]))
    return replaced(tensors, wholes, [name for name in tensors if name.endswith(ACTIVATIONS)])


def four_bits(tensors: Mapping[str, Tensor], packed: Tensor, second: Tensor) -> Tensor:
    """A weight of NVFP4."""
    factor = second.float32().reshape(-1)
    if len(factor) != 1:
        raise ModelError(f"{second.origin or second.name} has shape {list(second.shape)}; one number was expected")
    return nvfp4(packed.name, packed, part(tensors, f"{packed.name}_scale", packed), factor[0])


def input_scaled(weight: Tensor, scale: Tensor) -> Tensor:
    """Each column multiplied with the factor of its input."""
    if scale.size != weight.width:
        raise ModelError(f"{scale.origin or scale.name} has {scale.size} values for rows of {weight.width}")

    def read(start: int, stop: int) -> Floats:
        return weight.float32(start, stop) * scale.float32().reshape(1, -1)

    return decoded(weight.name, weight.shape, read, weight.origin)
