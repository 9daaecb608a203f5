"""8-bit floats and integers with scales: one for the tensor, for each row, for blocks of rows and columns, for groups.

    NAME              F8_E4M3, F8_E5M2 or I8 (…, rows, columns)
    NAME_scale_inv    or NAME_scale: (), (rows,), (rows, 1), (row blocks, column blocks), (rows, groups)
    NAME_zero_point   integers of the scale's shape, where integers are not symmetric

    weight = (stored - zero point) * scale

Despite its name, `scale_inv` multiplies. NAME usually ends in ".weight"; fused experts have no such ending.

NVIDIA ModelOpt has these and NVFP4 (see `fp4`; NAME_scale_2 is its factor, float32 ()). Where AWQ's factors of the
input are not part of a norm, it has pre_quant_scale (in,); they are multiplied into the columns. The algorithm is named
in config.json or, by older exports, in hf_quant_config.json.
"""

from collections.abc import Callable, Sequence

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..spec import Floats, Tensors
from ..transforms import span
from .fp4 import mxfp4, nvfp4
from .tensor_groups import Settings, Unpacked, decoded, part, refused, replaced

SUFFIXES = ("_scale_inv", "_scale")
SECOND = "_scale_2"
STORED = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8")
Blocks = Sequence[int]

# Tensors that only quantized activations or a quantized cache need.
ACTIVATIONS = (
    ".input_scale",
    ".activation_scale",
    "_activation_scale",
    ".input_scale_ub",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".prob_output_scale",
    ".k_zero_point",
    ".v_zero_point",
    ".weight_scale_ub",
)


def fp8(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return every scaled weight under its name, in its own shape. Raises ModelError for scales that don't fit."""
    weights = scaled_weights(tensors, settings.get("weight_block_size"))
    return without_activations(tensors, [(whole, companions(name)) for name, whole in weights.items()])


def modelopt(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return ModelOpt's weights as `fp8`. Raises ModelError for unsupported algorithms."""
    weights = scaled_weights(tensors, None)
    for name, second in tensors.items():
        packed = tensors.get(name.removesuffix(SECOND)) if name.endswith(SECOND) else None
        if packed is not None:
            factor = second.float32().reshape(-1)
            if len(factor) != 1:
                raise ModelError(f"{second.where} has shape {list(second.shape)}; one number was expected")
            scale = part(tensors, f"{packed.name}_scale", packed)
            weights[packed.name] = nvfp4(packed.name, packed, scale, factor[0])
    left = [t for n, t in tensors.items() if t.format.name == "U8" and f"{n}_scale" in tensors and n not in weights]
    if left:
        raise refused("modelopt", f"{settings.get('quant_algo')}, {left[0].name!r} has neither E4M3 nor I8")
    wholes = []
    for name, weight in weights.items():
        before = name.removesuffix("weight") + "pre_quant_scale"
        whole = input_scaled(weight, tensors[before]) if before in tensors else weight
        wholes.append((whole, [*companions(name), name + SECOND, before]))
    return without_activations(tensors, wholes)


def input_scaled(weight: Tensor, scale: Tensor) -> Tensor:
    """Return a weight with each column multiplied by its input's factor."""
    if scale.size != weight.width:
        raise ModelError(f"{scale.where} has {scale.size} values for rows of {weight.width}")

    def read(start: int, stop: int) -> Floats:
        return weight.float32(start, stop) * scale.float32().reshape(1, -1)

    return decoded(weight.name, weight.shape, read, weight.origin)


def without_activations(tensors: Tensors, wholes: list[tuple[Tensor, list[str]]]) -> Unpacked:
    return replaced(tensors, wholes, [name for name in tensors if name.endswith(ACTIVATIONS)])


def companions(name: str) -> list[str]:
    """Return the names of tensors that a scaled weight may consist of."""
    return [name, *(name + suffix for suffix in SUFFIXES), name + "_zero_point"]


def scaled_weights(tensors: Tensors, blocks: Blocks | None) -> dict[str, Tensor]:
    """Return every weight that has scales, decoded. blocks: rows and columns under one scale, where the config says
    so.
    """
    weights = {}
    for name, tensor in tensors.items():
        suffix = next((s for s in SUFFIXES if name.endswith(s)), None)
        whole = tensors.get(name.removesuffix(suffix)) if suffix else None
        if whole is not None and tensor.format.name == "F8_E8M0" and whole.nbytes == 16 * tensor.size:
            weights[whole.name] = mxfp4(whole.name, whole, tensor)  # experts of DeepSeek V4, next to others in FP8
        elif whole is not None and whole.format.name in STORED:
            weights[whole.name] = _scaled(whole, tensor, tensors.get(f"{whole.name}_zero_point"), blocks)
    return weights


def _scaled(weight: Tensor, scale: Tensor, zero: Tensor | None, blocks: Blocks | None) -> Tensor:
    """Return a weight times its scales, as a lazy float32 tensor of the same name and shape."""
    steps = [_applied(np.multiply, weight, scale, blocks)]
    if zero is not None:
        steps.insert(0, _applied(np.subtract, weight, zero, blocks))

    def read(start: int, stop: int) -> Floats:
        values = np.array(weight.float32(start, stop))
        for step in steps:
            step(values, start)
        return values

    return decoded(weight.name, weight.shape, read, weight.origin)


def _applied(
    operation: np.ufunc, weight: Tensor, small: Tensor, blocks: Blocks | None
) -> Callable[[Floats, int], None]:
    """Apply operation(values, matching element of `small`) in place, to rows from a given one on."""
    *outer, rows, width = weight.shape if len(weight.shape) > 1 else (1, *weight.shape)
    shape = small.shape
    if len(shape) > len(weight.shape):  # (row blocks, 1, column blocks, 1)
        shape = tuple(n for n in shape if n != 1)
    shape = (1,) * len(weight.shape) if small.size == 1 else shape + (1,) * (len(weight.shape) - len(shape))
    *outside, high, wide = shape if len(shape) > 1 else (1, *shape)
    given = blocks or (0, 0)
    row_block, column_block = _block(rows, high, given[0]), _block(width, wide, given[1])
    if not row_block or not column_block or (outside != outer and small.size != 1):
        within = f" in blocks of {blocks[0]} x {blocks[1]}" if blocks else ""
        fits = f"does not fit the weight's {list(weight.shape)}{within}"
        raise ModelError(f"{small.where} has shape {list(small.shape)}, which {fits}")

    def of_rows(start: int, stop: int) -> Floats:
        """Return the elements for rows start … stop: float32 (rows, column blocks)."""
        if small.size == 1:
            return np.full((stop - start, 1), small.float32().reshape(-1)[0])
        row = np.arange(start, stop)
        index = row // rows * high + row % rows // row_block
        first, last = (int(index[0]), int(index[-1]) + 1) if len(index) else (0, 0)
        factors: Floats = span(small.float32, small.width, first * wide, last * wide).reshape(-1, wide)[index - first]
        return factors

    def apply(values: Floats, start: int) -> None:
        numbers = of_rows(start, start + len(values))
        count = numbers.shape[1]
        if count * column_block == width:
            by_block = values.reshape(len(values), count, column_block)
            operation(by_block, numbers[:, :, None], out=by_block)
        else:
            operation(values, np.repeat(numbers, column_block, axis=1)[:, :width], out=values)

    return apply


def _block(size: int, count: int, given: int) -> int:
    """Return how many of `size` values share one of `count` numbers; 0 if impossible."""
    if given and count not in (1, size) and -(-size // given) == count:
        return given
    return size // count if count and size % count == 0 else 0
