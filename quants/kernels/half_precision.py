"""F16 and BF16: a kernel for each way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from .blocks import Bytes, Floats, filled, flat
from .half import from_bfloat, from_half, to_bfloat, to_half
from .jit import Kernels, kernel
from .lane_memory import load, store
from .lanes import LANES

Bits = NDArray[np.uint16]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """The nearest value, ties to even."""
    values = filled(flat(rows))
    bits = np.empty(values.size, "<u2")
    KERNELS[form.name].encode(values, bits)
    return bits[: rows.size].reshape(rows.shape).view(np.uint8)


def decode(form: Format, raw: Bytes) -> Floats:
    bits = filled(flat(raw.view("<u2")))
    values = np.empty(bits.size, np.float32)
    KERNELS[form.name].decode(bits, values)
    return values[: raw.size // 2].reshape(len(raw), -1)


# The last sixteen values may be some of those before, too.


@kernel
def _encode_f16(x: Floats, bits: Bits) -> None:
    for i in range(0, x.size - LANES, LANES):
        store(bits, i, to_half(load(x, i)))
    store(bits, x.size - LANES, to_half(load(x, x.size - LANES)))


@kernel
def _encode_bf16(x: Floats, bits: Bits) -> None:
    for i in range(0, x.size - LANES, LANES):
        store(bits, i, to_bfloat(load(x, i)))
    store(bits, x.size - LANES, to_bfloat(load(x, x.size - LANES)))


@kernel
def _decode_f16(bits: Bits, values: Floats) -> None:
    for i in range(0, bits.size - LANES, LANES):
        store(values, i, from_half(load(bits, i)))
    store(values, bits.size - LANES, from_half(load(bits, bits.size - LANES)))


@kernel
def _decode_bf16(bits: Bits, values: Floats) -> None:
    for i in range(0, bits.size - LANES, LANES):
        store(values, i, from_bfloat(load(bits, i)))
    store(values, bits.size - LANES, from_bfloat(load(bits, bits.size - LANES)))


KERNELS = {"F16": Kernels(_encode_f16, None, _decode_f16), "BF16": Kernels(_encode_bf16, None, _decode_bf16)}
