"""bitsandbytes: 4 bits through a table of 16 values (nf4, fp4) with a scale for each block, or 8 bits for each row.

4 bits, blocks run over the whole weight, row after row:

    NAME.weight                                      two values in a byte, the upper half first, whatever its dtype
    NAME.weight.absmax                               float32, or bytes where it is quantized itself ("nested")
    NAME.weight.quant_map                            float32 (16,)
    NAME.weight.nested_absmax, .nested_quant_map     float32; absmax = map[byte] * nested_absmax[block] + offset
    NAME.weight.quant_state.bitsandbytes__nf4        JSON in bytes: shape, blocksize, nested_blocksize, nested_offset

8 bits: NAME.weight int8 (out, in), NAME.SCB float32 (out,); weight[o, i] = q[o, i] * SCB[o] / 127.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError
from quants.kernels.packed_integers import dequantize_pairs

from ..small_files import parse_json
from ..spec import Floats, Tensors
from ..transforms import span
from ..typed_json import Number, Whole, read_fields
from .tensor_groups import Settings, Unpacked, decoded, part, replaced

STATE = ".quant_state.bitsandbytes__"
STATE_KEYS = {"blocksize": Whole(2), "nested_blocksize": Whole(1), "nested_offset": Number()}
STATISTICS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
BY_127 = np.float32(7.874015718698502e-3)  # the library multiplies by it
IGNORED = (".weight_format",)  # 0: rows, the only order that is written


def unpacked(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return every quantized weight under its name, in its own shape. Raises ModelError for incomplete ones."""
    wholes, ignored = [], []
    for name, tensor in tensors.items():
        if STATE in name:
            weight = name.partition(STATE)[0]
            parts = [weight, name, *(f"{weight}.{each}" for each in STATISTICS)]
            wholes.append((four_bits(tensors, part(tensors, weight, tensor), state_of(tensor)), parts))
        elif name.endswith(".SCB"):
            weight = name.removesuffix("SCB") + "weight"
            wholes.append((eight_bits(part(tensors, weight, tensor), tensor), [weight, name]))
        elif name.endswith(IGNORED):
            ignored.append(name)
    return replaced(tensors, wholes, ignored)


def state_of(tensor: Tensor) -> dict[str, Any]:
    """Return the JSON object in a tensor's bytes. Raises ModelError for anything else."""
    try:
        state = parse_json(tensor.raw().tobytes())
    except ValueError as error:
        raise ModelError(f"{tensor.where} is not valid JSON: {error}") from error
    shape = state.get("shape") if isinstance(state, dict) else None
    if not isinstance(shape, list) or not shape or not all(type(n) is int and n > 0 for n in shape):
        raise ModelError(f"{tensor.where} says no shape of the weight")
    return read_fields(state, STATE_KEYS, tensor.where)


def four_bits(tensors: Tensors, packed: Tensor, state: Mapping[str, Any]) -> Tensor:
    """Return a weight of nf4 or fp4 values."""
    name, shape, block = packed.name, tuple(state["shape"]), state.get("blocksize") or 64
    size = math.prod(shape)
    absmax = part(tensors, f"{name}.absmax", packed)
    if block % 2 or packed.nbytes != -(-size // 2) or absmax.size != -(-size // block):
        needed = f"shape {list(shape)} in blocks of {block} needs {-(-size // 2)} and {-(-size // block)}"
        raise ModelError(f"{packed.where} has {packed.nbytes} bytes, {absmax.size} scales; {needed}")
    code = part(tensors, f"{name}.quant_map", packed, (16,))
    scales = scales_of(tensors, packed, absmax, state)

    def read(start: int, stop: int) -> Floats:
        low, high = start * shape[-1], stop * shape[-1]
        first, last = low // block, -(-high // block)
        pairs = span(packed.raw, packed.row_bytes, first * block // 2, -(-high // 2))
        result = np.empty(high - low, np.float32)
        dequantize_pairs(pairs, low - first * block, block, code.float32(), scales(first, last), result)
        return result.reshape(stop - start, shape[-1])

    return decoded(name, shape, read, packed.origin)


def scales_of(
    tensors: Tensors, packed: Tensor, absmax: Tensor, state: Mapping[str, Any]
) -> Callable[[int, int], Floats]:
    """Return scales of blocks start … stop, stored plainly, or quantized to 8 bits in blocks of their own."""
    if absmax.format.name == "F32":
        return lambda start, stop: span(absmax.float32, absmax.width, start, stop)
    if absmax.format.name != "U8":
        raise ModelError(f"{absmax.where} is {absmax.format.name}; F32 or U8 was expected")
    table = part(tensors, f"{packed.name}.nested_quant_map", packed, (256,))
    statistics = part(tensors, f"{packed.name}.nested_absmax", packed)
    each, offset = state.get("nested_blocksize") or 256, np.float32(state.get("nested_offset") or 0)
    if statistics.size != -(-absmax.size // each):
        needed = f"{absmax.size} scales in blocks of {each} need {-(-absmax.size // each)}"
        raise ModelError(f"{statistics.where} has {statistics.size} values; {needed}")

    def scales(start: int, stop: int) -> Floats:
        blocks = np.arange(start, stop) // each
        codes = span(absmax.raw, absmax.row_bytes, start, stop)
        return np.asarray(table.float32()[codes] * statistics.float32().reshape(-1)[blocks] + offset)

    return scales


def eight_bits(weight: Tensor, scb: Tensor) -> Tensor:
    """Return a weight of signed bytes with a scale for each row."""
    if weight.format.name != "I8" or scb.size != weight.rows:
        problem = f"{weight.where} is {weight.format.name} {list(weight.shape)} with {scb.size} scales"
        raise ModelError(f"{problem}; I8 with one a row was expected")

    def read(start: int, stop: int) -> Floats:
        scales = scb.float32().reshape(-1)[start:stop, None]
        values: Floats = weight.float32(start, stop) * scales * BY_127
        return values

    return decoded(weight.name, weight.shape, read, weight.origin)
