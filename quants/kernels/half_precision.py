"""F16 and BF16: kernels that encode and decode."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from .blocks import Bytes, Floats, Kernels, flat
from .half import from_bfloat, from_half, to_bfloat, to_half
from .jit import kernel
from .lane_memory import load, store
from .lanes import LANES

Bits = NDArray[np.uint16]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """Encode to the nearest value, ties to even."""
    values = _filled(flat(rows))
    bits = np.empty(values.size, "<u2")
    KERNELS[form.name].encode(values, bits)
    return bits[: rows.size].reshape(rows.shape).view(np.uint8)


def decode(form: Format, raw: Bytes) -> Floats:
    bits = _filled(flat(raw.view("<u2")))
    values = np.empty(bits.size, np.float32)
    KERNELS[form.name].decode(bits, values)
    return values[: raw.size // 2].reshape(len(raw), -1)


def _filled(array: NDArray[Any]) -> NDArray[Any]:
    """Return a one-dimensional array, padded to sixteen elements with zeros if it is shorter."""
    return array if array.size >= LANES else flat(np.pad(array, (0, LANES - array.size)))


def _kernels(brain: bool) -> Kernels:
    """Return the kernels of BF16 or of F16. The last sixteen values may overlap those before."""

    @kernel
    def encode(x: Floats, bits: Bits) -> None:
        for i in range(0, x.size, LANES):
            at = min(i, x.size - LANES)
            store(bits, at, to_bfloat(load(x, at)) if brain else to_half(load(x, at)))

    @kernel
    def decode(bits: Bits, values: Floats) -> None:
        for i in range(0, bits.size, LANES):
            at = min(i, bits.size - LANES)
            store(values, at, from_bfloat(load(bits, at)) if brain else from_half(load(bits, at)))

    return Kernels(encode, None, decode)


KERNELS = {"F16": _kernels(False), "BF16": _kernels(True)}
