"""Weights stored as each method defines it, in plain numpy, and the float32 values that they mean.

A writer takes a float32 matrix and gives (parts by the ending of their names: (dtype of safetensors, array), values).
Values come from the integers before they are packed, so that a reader is checked against another road.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gguftools.io.checkpoint.dtypes import checkpoint_formats
from quants import Tensor

Parts = dict[str, tuple[str, np.ndarray]]
Written = tuple[Parts, np.ndarray]
Writer = Callable[[np.ndarray], Written]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NF4 = np.array(
    [
        -1.0,
        -0.6961928,
        -0.52507305,
        -0.3949175,
        -0.28444138,
        -0.18477343,
        -0.09105004,
        0.0,
        0.0795803,
        0.1609302,
        0.2461123,
        0.33791524,
        0.44070983,
        0.562617,
        0.72295684,
        1.0,
    ],
    np.float32,
)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def stored(tensors: Mapping[str, tuple[str, np.ndarray]]) -> dict[str, Tensor]:
    """Arrays as a checkpoint's tensors."""
    return {name: _tensor(name, dtype, np.ascontiguousarray(array)) for name, (dtype, array) in tensors.items()}


def _tensor(name: str, dtype: str, array: np.ndarray) -> Tensor:
    rows, width = math.prod(array.shape[:-1]), array.shape[-1] if array.ndim else 1
    raw = array.reshape(rows, width).view(np.uint8)
    return Tensor(name, array.shape, checkpoint_formats()[dtype], lambda start, stop: raw[start:stop], f"file: {name}")


def write_safetensors(path: Any, tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    """A file of these arrays."""
    header, at, data = {}, 0, []
    for name, (dtype, array) in tensors.items():
        data.append(np.ascontiguousarray(array).tobytes())
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Indices of the nearest entries of a table that rises, the lower of two as near."""
    return np.searchsorted((table[1:] + table[:-1]) / 2, values).astype(np.uint8)


def float8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest E4M3 codes of magnitudes up to 448, and what they mean."""
    table = checkpoint_formats()["F8_E4M3"].decode(np.arange(127, dtype=np.uint8)[None])[0]
    codes = nearest(np.abs(values), table)
    return codes | np.uint8(128) * (values < 0), np.where(values < 0, -table[codes], table[codes]).astype(np.float32)


def bit_stream(integers: np.ndarray, bits: int, whole: bool = False) -> np.ndarray:
    """Each row as 32-bit words, lowest bits first; whole: no value runs across words."""
    rows, width = integers.shape
    each = 32 // bits if whole else width  # values of a word, or of all words
    full = np.zeros((rows, -(-width // each) * each), np.int64)
    full[:, :width] = integers
    binary = full.reshape(rows, -1, each, 1) >> np.arange(bits) & 1
    binary = binary.reshape(rows, -1, each * bits).astype(np.uint8)
    words = np.zeros((*binary.shape[:2], -(-each * bits // 32) * 32), np.uint8)
    words[..., : each * bits] = binary
    return np.packbits(words, axis=-1, bitorder="little").reshape(rows, -1).view("<i4")


def grouped(weight: np.ndarray, bits: int, size: int, order: np.ndarray | None = None, symmetric: bool = False) -> Any:
    """Integers, zero points and half-precision scales of groups of columns, the group of each column, the values."""
    rows, width = weight.shape
    group = np.arange(width) // size if order is None else order
    largest = (1 << bits) - 1
    scales, zeros = np.empty((rows, group.max() + 1), np.float16), np.empty((rows, group.max() + 1), np.int64)
    for g in range(group.max() + 1):
        part = weight[:, group == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scales[:, g] = 2 * np.maximum(-low, high) / largest if symmetric else (high - low) / largest
        zeros[:, g] = 1 << (bits - 1) if symmetric else np.clip(np.rint(-low / scales[:, g]), 1, largest)
    integers = np.clip(np.rint(weight / scales[:, group].astype(np.float32)) + zeros[:, group], 0, largest).astype(int)
    values = (integers - zeros[:, group]).astype(np.float32) * scales[:, group].astype(np.float32)
    return integers, zeros, scales, group, values


def gptq(bits: int = 4, size: int = 32, act_order: bool = False, version: int = 1, symmetric: bool = False) -> Writer:
    def write(weight: np.ndarray) -> Written:
        order = np.random.default_rng(bits).permutation(np.arange(weight.shape[1]) // size) if act_order else None
        integers, zeros, scales, group, values = grouped(weight, bits, size, order, symmetric)
        kept = zeros - 1 if version == 1 else zeros
        parts: Parts = {
            "qweight": ("I32", bit_stream(integers, bits).T),
            "qzeros": ("I32", bit_stream(kept.T, bits)),
            "scales": ("F16", scales.T),
        }
        return parts | ({"g_idx": ("I32", group.astype(np.int32))} if act_order else {}), values

    return write


def awq(weight: np.ndarray) -> Written:
    integers, zeros, scales, _, values = grouped(weight, 4, 64)

    def interleaved(matrix: np.ndarray) -> np.ndarray:
        rows, out = matrix.shape
        return bit_stream(matrix.reshape(rows, out // 8, 8)[:, :, AWQ_ORDER].reshape(rows, out), 4)

    qweight, qzeros = interleaved(integers.T), interleaved(zeros.T)
    return {"qweight": ("I32", qweight), "qzeros": ("I32", qzeros), "scales": ("F16", scales.T)}, values


def fp8(shape: str = "block", scale: str = "scale_inv", block: int = 128, dtype: str = "F32") -> Writer:
    """shape: "tensor", "row" or "block"."""

    def write(weight: np.ndarray) -> Written:
        rows, width = weight.shape
        high, wide = {"tensor": (rows, width), "row": (1, width), "block": (block, block)}[shape]
        scales = np.empty((-(-rows // high), -(-width // wide)), np.float32)
        for i, j in np.ndindex(*scales.shape):
            scales[i, j] = np.abs(weight[i * high : (i + 1) * high, j * wide : (j + 1) * wide]).max() / 448
        if dtype == "F8_E8M0":
            scales = np.exp2(np.ceil(np.log2(scales)))
        every = np.repeat(np.repeat(scales, high, 0), wide, 1)[:rows, :width]
        codes, meant = float8(weight / every)
        kept = (np.log2(scales) + 127).astype(np.uint8) if dtype == "F8_E8M0" else scales
        kept = kept.reshape(()) if shape == "tensor" else kept
        return {"weight": ("F8_E4M3", codes), f"weight_{scale}": (dtype, kept)}, meant * every

    return write


def int8(weight: np.ndarray) -> Written:
    scales = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    integers = np.rint(weight / scales).astype(np.int8)
    return {"weight": ("I8", integers), "weight_scale": ("F32", scales)}, integers.astype(np.float32) * scales


def packed(bits: int = 4, size: int = 32, zero: str = "", act_order: bool = False, whole: bool = False) -> Writer:
    """compressed-tensors' integers. zero: "", "packed" or "I8"; whole: as older versions pack them."""

    def write(weight: np.ndarray) -> Written:
        order = np.random.default_rng(bits).permutation(np.arange(weight.shape[1]) // size) if act_order else None
        integers, zeros, scales, group, values = grouped(weight, bits, size, order, symmetric=not zero)
        parts: Parts = {
            "weight_packed": ("I32", bit_stream(integers, bits, whole)),
            "weight_scale": ("F16", scales),
            "weight_shape": ("I64", np.array(weight.shape)),
        }
        if zero == "packed":
            parts["weight_zero_point"] = "I32", bit_stream(zeros.T, bits, whole).T
        elif zero:
            parts["weight_zero_point"] = "I8", (zeros - (1 << (bits - 1))).astype(np.int8)
        return parts | ({"weight_g_idx": ("I32", group.astype(np.int32))} if act_order else {}), values

    return write


def four_bit_pairs(weight: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E2M1 codes two to a byte, the even column in the lower half, and their values times the scales."""
    codes = nearest(np.abs(weight / scales), E2M1[:8])
    codes |= np.uint8(8) * ((weight < 0) & (codes > 0))
    return codes[:, ::2] | codes[:, 1::2] << 4, E2M1[codes] * scales


def nvfp4(whole: float | None = None, divide: bool = False) -> Writer:
    """whole: the factor of the tensor, as ModelOpt stores it, or the divisor of compressed-tensors."""

    def write(weight: np.ndarray) -> Written:
        amax = np.abs(weight.reshape(len(weight), -1, 16)).max(-1) / 6
        factor = np.float32(whole or (448 / amax.max() if divide else amax.max() / 448))
        codes, scales = float8(amax * factor if divide else amax / factor)
        each = np.repeat(scales / factor if divide else scales * factor, 16, 1)
        pairs, values = four_bit_pairs(np.where(each > 0, weight, 0), np.maximum(each, 1e-30))
        parts: Parts = {"weight_packed" if divide else "weight": ("U8", pairs), "weight_scale": ("F8_E4M3", codes)}
        if divide:
            parts["weight_global_scale"] = "F32", np.array([factor])
        else:
            parts["weight_scale_2"] = "F32", np.array(factor)
        return parts, values

    return write


def mxfp4(weight: np.ndarray) -> Written:
    exponents = np.floor(np.log2(np.abs(weight.reshape(len(weight), -1, 32)).max(-1))) - 2
    pairs, values = four_bit_pairs(weight, np.repeat(np.exp2(exponents), 32, 1).astype(np.float32))
    return {"weight_packed": ("U8", pairs), "weight_scale": ("U8", (exponents + 127).astype(np.uint8))}, values


def nf4(nested: bool = True, storage: str = "U8") -> Writer:
    def write(weight: np.ndarray) -> Written:
        absmax = np.abs(weight.reshape(-1, 64)).max(1)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
        parts: Parts = {"weight.quant_map": ("F32", NF4)}
        if nested:
            offset = np.float32(absmax.mean())
            centred = np.resize(absmax - offset, (-(-len(absmax) // 256), 256))
            largest = np.abs(centred).max(1)
            table = np.linspace(-1, 1, 256, dtype=np.float32)
            codes = nearest(centred / largest[:, None], table)
            parts["weight.absmax"] = "U8", codes.reshape(-1)[: len(absmax)]
            parts["weight.nested_absmax"], parts["weight.nested_quant_map"] = ("F32", largest), ("F32", table)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
            absmax = (table[codes] * largest[:, None]).reshape(-1)[: len(absmax)] + offset
        else:
            parts["weight.absmax"] = "F32", absmax
        codes = nearest(weight.reshape(-1, 64) / absmax[:, None], NF4)
        pairs = (codes.reshape(-1)[::2] << 4 | codes.reshape(-1)[1::2]).reshape(-1, 1)
        parts["weight"] = storage, pairs.reshape(-1).view(np.uint16).reshape(-1, 1) if storage == "BF16" else pairs
        blob = np.frombuffer(json.dumps(state).encode(), np.uint8)
        parts["weight.quant_state.bitsandbytes__nf4"] = "U8", blob
        return parts, (NF4[codes] * absmax[:, None]).reshape(weight.shape)

    return write


def bitsandbytes_int8(weight: np.ndarray) -> Written:
    scb = np.abs(weight).max(1)
    integers = np.rint(weight / scb[:, None] * 127).astype(np.int8)
    values = integers.astype(np.float32) * scb[:, None] * np.float32(7.874015718698502e-3)
    parts: Parts = {"weight": ("I8", integers), "SCB": ("F32", scb), "weight_format": ("U8", np.zeros((), np.uint8))}
    return parts, values


def bitnet(divides: bool = True, scale: float | None = None, plain: bool = False) -> Writer:
    """divides: the scale is the inverse of what values are multiplied with. plain: values as bfloat16."""

    def write(weight: np.ndarray) -> Written:
        mean = np.float32(scale or np.abs(weight).mean())
        values = np.clip(np.rint(weight / mean), -1, 1)
        codes = (values + 1).astype(np.uint8).reshape(4, -1, weight.shape[1])
        packed = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
        kept = np.float32(1) / mean if divides else mean
        bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        parts: Parts = {
            "weight": ("BF16", bits) if plain else ("U8", packed),
            "weight_scale": ("F32", np.array([kept])),
        }
        meant = values.astype(np.float32) / kept if divides else values.astype(np.float32) * kept
        return parts, meant

    return write


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """The quantization_config of compressed-tensors for one group of layers."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


# name: quantization_config, writer
CASES: dict[str, tuple[dict[str, Any], Writer]] = {
    **{
        f"gptq-{bits}": ({"quant_method": "gptq", "bits": bits, "group_size": 32}, gptq(bits))
        for bits in (2, 3, 4, 5, 8)
    },
    **{
        f"gptq-{bits}-act-order": ({"quant_method": "gptq", "bits": bits, "desc_act": True}, gptq(bits, act_order=True))
        for bits in (3, 4)
    },
    "gptq-sym": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, gptq(size=128, symmetric=True)),
    "gptq-v2": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(version=2)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}, awq),
    "auto-round": ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, gptq()),
    "auto-round-v2": ({"quant_method": "auto-round", "packing_format": "auto_round"}, gptq(version=2)),
    "auto-round-awq": ({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}, awq),
    "fp8-block": ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, fp8()),
    "fp8-block-e8m0": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8(dtype="F8_E8M0")),
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8("tensor")),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, fp8("row", "scale")),
    "compressed-fp8": (compressed("float-quantized", num_bits=8, type="float"), fp8("row", "scale")),
    "compressed-fp8-block": (
        compressed("float-quantized", num_bits=8, type="float", block_structure=[96, 96]),
        fp8("block", "scale", 96),
    ),
    "compressed-int8": (compressed("int-quantized", num_bits=8, type="int"), int8),
    "compressed-int4": (compressed("pack-quantized", num_bits=4, group_size=32), packed()),
    "compressed-int4-zero": (compressed("pack-quantized", num_bits=4, symmetric=False), packed(zero="packed")),
    "compressed-int4-zero-i8": (compressed("pack-quantized", num_bits=4, symmetric=False), packed(zero="I8")),
    "compressed-int4-act-order": (compressed("pack-quantized", num_bits=4), packed(act_order=True)),
    "compressed-int3-whole": (compressed("pack-quantized", num_bits=3), packed(3, zero="packed", whole=True)),
    "compressed-int3": (compressed("pack-quantized", num_bits=3), packed(3, zero="packed")),
    "compressed-nvfp4": (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), nvfp4(divide=True)),
    "compressed-mxfp4": (compressed("mxfp4-pack-quantized", num_bits=4, type="float"), mxfp4),
    "nf4-nested": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4()),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4(nested=False)),
    "nf4-storage": ({"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, nf4(storage="BF16")),
    "bitsandbytes-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bitsandbytes_int8),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8("tensor", "scale")),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4()),
    "modelopt-nvfp4-one": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4(1.0)),
    "modelopt-nvfp4-power": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4(4.0)),
    "bitnet": ({"quant_method": "bitnet", "modules_to_not_convert": None}, bitnet()),
    "bitnet-auto": (
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
        bitnet(False, 0.125),
    ),
    "bitnet-auto-plain": ({"quant_method": "bitnet", "linear_class": "autobitlinear"}, bitnet(False, plain=True)),
}
BLOCKS = {"compressed-mxfp4": "MXFP4", "modelopt-nvfp4-one": "NVFP4", "modelopt-nvfp4-power": "NVFP4"}
