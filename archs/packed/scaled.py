"""8-bit floats and integers with scales: one for the tensor, for each row, for blocks of rows and columns, for groups.

    NAME              F8_E4M3, F8_E5M2 or I8 (…, rows, columns)
    NAME_scale_inv    or NAME_scale: (), (rows,), (rows, 1), (row blocks, column blocks), (rows, groups)
    NAME_zero_point   integers of the scale's shape, where integers are not symmetric

    weight = (stored - zero point) * scale

Despite its name, `scale_inv` multiplies. NAME usually ends in ".weight"; fused experts have no such ending.
"""

from collections.abc import Mapping

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from .parts import Floats, Settings, Unpacked, decoded, replaced

SUFFIXES = ("_scale_inv", "_scale")
STORED = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8")
Blocks = tuple[int, int]

# What only the computation with quantized activations or a quantized cache needs.
ACTIVATIONS = (
    ".input_scale", ".activation_scale", "_activation_scale", ".input_scale_ub", ".input_global_scale",
    ".input_zero_point", ".output_scale", ".output_zero_point", ".q_scale", ".k_scale", ".v_scale", ".kv_scale",
    ".prob_output_scale", ".k_zero_point", ".v_zero_point", ".weight_scale_ub",
)  # fmt: skip


def unpacked(settings: Settings, tensors: Mapping[str, Tensor]) -> Unpacked:
    """Every scaled weight under its name, in its own shape. Raises ModelError for scales that don't fit."""
    blocks = settings.get("weight_block_size")
    found = scaled_weights(tensors, (int(blocks[0]), int(blocks[1])) if blocks else None)
    wholes = [(whole, companions(name)) for name, whole in found.items()]
    return replaced(tensors, wholes, [name for name in tensors if name.endswith(ACTIVATIONS)])


def companions(name: str) -> list[str]:
    """The names of tensors that a scaled weight may consist of."""
    return [name, *(name + suffix for suffix in SUFFIXES), name + "_zero_point"]


def scaled_weights(tensors: Mapping[str, Tensor], blocks: Blocks | None) -> dict[str, Tensor]:
    """Every weight that has scales, decoded. blocks: rows and columns under one scale, where the config says so."""
    found = {}
    for name, tensor in tensors.items():
        suffix = next((s for s in SUFFIXES if name.endswith(s)), None)
        whole = tensors.get(name.removesuffix(suffix)) if suffix else None
        if whole is not None and whole.format.name in STORED:
            found[whole.name] = scaled(whole, tensor, tensors.get(f"{whole.name}_zero_point"), blocks)
    return found


def scaled(weight: Tensor, scale: Tensor, zero: Tensor | None = None, blocks: Blocks | None = None) -> Tensor:
    """A weight times its scales, as a lazy float32 tensor of the same name and shape."""
    places = Places(weight, scale, blocks)
    zeros = Places(weight, zero, blocks) if zero is not None else None

    def read(start: int, stop: int) -> Floats:
        values = np.array(weight.float32(start, stop))
        if zeros is not None:
            zeros.apply(np.subtract, values, start)
        places.apply(np.multiply, values, start)
        return values

    return decoded(weight.name, weight.shape, read, weight.origin)


class Places:
    """Which number of a small tensor belongs to which value of a weight."""

    def __init__(self, weight: Tensor, small: Tensor, blocks: Blocks | None) -> None:
        *outer, self.rows, self.width = weight.shape if len(weight.shape) > 1 else (1, *weight.shape)
        shape = small.shape
        if len(shape) > len(weight.shape):  # (row blocks, 1, column blocks, 1)
            shape = tuple(n for n in shape if n != 1)
        shape = (1,) * len(weight.shape) if small.size == 1 else shape + (1,) * (len(weight.shape) - len(shape))
        self.shape = shape if len(shape) > 1 else (1, *shape)
        self.small = small
        *outside, high, wide = self.shape
        self.row_block = _block(self.rows, high, blocks and blocks[0])
        self.column_block = _block(self.width, wide, blocks and blocks[1])
        if not self.row_block or not self.column_block or (outside != outer and small.size != 1):
            raise ModelError(
                f"{small.origin or small.name} has shape {list(small.shape)}, which does not fit the weight's "
                f"{list(weight.shape)}" + (f" in blocks of {blocks[0]} x {blocks[1]}" if blocks else "")
            )

    def apply(self, operation: np.ufunc, values: Floats, start: int) -> None:
        """values = operation(values, the number of each), in place; values are rows `start` … of the weight."""
        numbers = self.of_rows(start, start + len(values))
        count = numbers.shape[1]
        if count * self.column_block == self.width:
            by_block = values.reshape(len(values), count, self.column_block)
            operation(by_block, numbers[:, :, None], out=by_block)
        else:
            operation(values, np.repeat(numbers, self.column_block, axis=1)[:, : self.width], out=values)

    def of_rows(self, start: int, stop: int) -> Floats:
        """The numbers of rows start … stop: float32 (rows, column blocks)."""
        *_, high, wide = self.shape
        if self.small.size == 1:
            return np.full((stop - start, 1), self.small.float32().reshape(-1)[0])
        row = np.arange(start, stop)
        index = row // self.rows * high + row % self.rows // self.row_block
        first, last = (int(index[0]), int(index[-1]) + 1) if len(index) else (0, 0)
        found: Floats = self.flat(first * wide, last * wide).reshape(-1, wide)[index - first]
        return found

    def flat(self, begin: int, end: int) -> Floats:
        """Numbers begin … end in the order of the file, reading no more rows than hold them."""
        each = max(1, self.small.width)
        found: Floats = self.small.float32(begin // each, -(-end // each)).reshape(-1)
        wanted: Floats = found[begin % each :][: end - begin]
        return wanted


def _block(size: int, count: int, given: int | None) -> int:
    """How many of `size` values share one of `count` numbers; 0 where that cannot be."""
    if count in (1, size):
        return size // count
    if given and -(-size // given) == count:
        return given
    return size // count if count and size % count == 0 else 0
