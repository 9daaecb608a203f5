"""Define the dtypes of checkpoints that ggml has no type for.

They are Formats like any other (`Tensor.elements()` gives the stored bits, `Tensor.float32()` the values), but no GGUF
file can hold them: their ggml type is -1. Names are those of safetensors. F8_E4M3 is the variant without infinities
that PyTorch calls float8_e4m3fn. The FNUZ variants have neither infinities nor a negative zero.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from quants import Format, FormatError, format_named

SHARED_WITH_GGML = ("F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64")
INTEGERS = {"U8": "<u1", "BOOL": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
# name: bits of the exponent, bits of the mantissa, exponent bias, which codes are not finite numbers
SMALL_FLOATS = {
    "F8_E4M3": (4, 3, 7, "only the last is NaN"),
    "F8_E5M2": (5, 2, 15, "infinity and NaN as in IEEE 754"),
    "F8_E4M3FNUZ": (4, 3, 8, "negative zero is NaN"),
    "F8_E5M2FNUZ": (5, 2, 16, "negative zero is NaN"),
    "F4": (2, 1, 1, "all are finite"),
}
NOT_DECODED = {"C64": (1, 8), "F6_E2M3": (4, 3), "F6_E3M2": (4, 3)}  # values, bytes of the smallest whole


@cache
def checkpoint_formats() -> dict[str, Format]:
    """Return every dtype by its name in safetensors files."""
    blocks = {name: (1, dtype) for name, dtype in INTEGERS.items()}
    blocks |= dict.fromkeys((*SMALL_FLOATS, "F8_E8M0"), (1, "u1")) | {"F4": (2, "V1")}
    blocks |= {name: (values, f"V{size}") for name, (values, size) in NOT_DECODED.items()}
    known = {name: format_named(name) for name in SHARED_WITH_GGML}
    more = {name: Format(name, -1, values, np.dtype(dtype), __name__) for name, (values, dtype) in blocks.items()}
    return known | more


def encode(form: Format, rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """Raise FormatError: nothing is encoded to these types."""
    raise FormatError(f"{form.name} is a type of checkpoints: nothing is encoded to it")


def decode(form: Format, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode rows: uint8 (n, bytes of a row) → float32 (n, width).

    Raises FormatError for types that are only copied.
    """
    name, raw = form.name, np.ascontiguousarray(raw)
    if name in INTEGERS:
        return raw.view(INTEGERS[name]).astype(np.float32)
    if name in NOT_DECODED:
        raise FormatError(f"{name} tensors can be copied, but not decoded")
    # Of F4 the lower half of a byte comes first.
    return _table(name)[np.stack((raw & 15, raw >> 4), -1).reshape(len(raw), -1) if name == "F4" else raw]


@cache
def _table(name: str) -> NDArray[np.float32]:
    """Return the value of every code, float32."""
    if name == "F8_E8M0":  # a power of two, without a sign
        codes = np.arange(256)
        values = np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127))
        return np.asarray(values, np.float32)
    exponent_bits, mantissa_bits, bias, special = SMALL_FLOATS[name]
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = sign * np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    last = (1 << exponent_bits) - 1
    if special == "only the last is NaN":
        values[(exponent == last) & (mantissa == (1 << mantissa_bits) - 1)] = np.nan
    elif special == "infinity and NaN as in IEEE 754":
        values[exponent == last] = np.where(mantissa == 0, sign * np.inf, np.nan)[exponent == last]
    elif special == "negative zero is NaN":
        values[len(codes) // 2] = np.nan
    return np.asarray(values, np.float32)
