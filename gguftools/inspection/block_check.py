"""Whether every stored block means numbers: a look at scales and exponents alone, much faster than decoding."""

from collections.abc import Iterable

import numpy as np

from quants import Format, Tensor

from ..writing.finiteness import not_finite
from ..writing.row_blocks import Progress, by_tensor


def can_check(form: Format) -> bool:
    return not form.is_quantized or form.has_codec


def find_bad_blocks(
    tensors: Iterable[Tensor], *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, str]:
    """What is wrong with each tensor that has a NaN or infinity in a scale or value; of formats that we know."""
    usable = {tensor.name: tensor for tensor in tensors if can_check(tensor.format)}
    found = {}
    for name, looks in by_tensor(usable.values(), _look, threads=threads, progress=progress).items():
        if bad := [look for look in looks if look]:
            count, row, block = sum(each[0] for each in bad), *bad[0][1:]
            quantized = usable[name].format.is_quantized
            what = "a scale is NaN or infinite in block" if quantized else "NaN or infinity in column"
            found[name] = f"{what} {block} of row {row}" + (f", the first of {count:,}" if count > 1 else "")
    return found


def _look(tensor: Tensor, start: int, stop: int) -> tuple[int, int, int] | None:
    """How many blocks (values, where a value has bytes of its own) are not finite; row and block of the first."""
    raw = np.ascontiguousarray(tensor.raw(start, stop))
    wrong = not_finite(tensor.format, raw)
    if wrong is None or not wrong.any():
        return None
    row, block = divmod(int(np.argmax(wrong)), wrong.size // len(raw))
    return int(np.count_nonzero(wrong)), start + row, block
