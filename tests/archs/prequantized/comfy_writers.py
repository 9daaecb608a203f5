"""Weights stored as ComfyUI's formats define them, value by value, and the float32 values that they mean.

A writer takes a float32 matrix and gives its settings, parts by the ending of their names, and the values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from gguftools.io.checkpoint.dtypes import checkpoint_formats

from .writers import E2M1, NF4, Parts, float8, nearest

Stored = tuple[dict[str, Any], Parts, np.ndarray]
H4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2


def as_bytes(settings: Any) -> tuple[str, np.ndarray]:
    return "U8", np.frombuffer(json.dumps(settings).encode(), np.uint8)


def e5m2(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Half precision without the lower byte, rounded towards zero, and what it means."""
    codes = (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    return codes, (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def rotation(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron(matrix, H4)
    return matrix


def rotated(weight: np.ndarray, size: int) -> np.ndarray:
    groups = weight.reshape(len(weight), -1, size).astype(float)
    return (groups @ rotation(size).T).reshape(weight.shape)


def tiles(scales: np.ndarray) -> np.ndarray:
    """Each scale where the tiles of cuBLAS have it: 128 rows of 4, row r of a tile at 16 * (r % 32) + 4 * (r // 32)."""
    rows, count = scales.shape
    high, wide = -(-rows // 128), -(-count // 4)
    flat = np.zeros(high * wide * 512, scales.dtype)
    for row in range(rows):
        for column in range(count):
            tile, inside = row // 128 * wide + column // 4, row % 128
            flat[tile * 512 + inside % 32 * 16 + inside // 32 * 4 + column % 4] = scales[row, column]
    return flat.reshape(high * 128, wide * 4)


def padded(weight: np.ndarray, multiple: int) -> np.ndarray:
    rows, width = (-(-n // multiple) * multiple for n in weight.shape)
    result = np.zeros((rows, width), np.float32)
    result[: len(weight), : weight.shape[1]] = weight
    return result


def pairs(codes: np.ndarray, upper_first: bool = False) -> np.ndarray:
    even, odd = codes[:, ::2].astype(np.uint8) & 15, codes[:, 1::2].astype(np.uint8) & 15
    return even << 4 | odd if upper_first else even | odd << 4


def old_float8(weight: np.ndarray) -> Stored:
    scale = np.float32(np.abs(weight).max() / 448)
    codes, meant = float8(weight / scale)
    parts: Parts = {"weight": ("F8_E4M3", codes), "scale_weight": ("F32", np.array([scale]))}
    return {}, parts | {"scale_input": ("F32", np.ones((), np.float32))}, meant * scale


def of_rows(weight: np.ndarray) -> Stored:
    scales = (np.abs(weight).max(1, keepdims=True) / 448).astype(np.float32)
    codes, meant = float8(weight / scales)
    return (
        {"format": "float8_e4m3fn"},
        {"weight": ("F8_E4M3", codes), "weight_scale": ("F32", scales)},
        meant * scales,
    )


def named_rows(weight: np.ndarray) -> Stored:
    _, parts, values = of_rows(weight)
    parts["weight_scale"] = "F32", parts["weight_scale"][1][:, 0]
    return {"format": "float8_e4m3fn_rowwise", "orig_dtype": "torch.bfloat16"}, parts, values


def squares(form: str, size: int) -> Callable[[np.ndarray], Stored]:
    def write(weight: np.ndarray) -> Stored:
        rows, width = (n // size for n in weight.shape)
        largest = np.abs(weight.reshape(rows, size, width, size)).max((1, 3))
        scales = (largest / (127 if form.startswith("int8") else 448)).astype(np.float32)
        each = np.repeat(np.repeat(scales, size, 0), size, 1)
        if form.startswith("int8"):
            codes = np.rint(weight / each).astype(np.int8)
            stored, values = ("I8", codes), codes * each
        else:
            codes, meant = float8(weight / each)
            stored, values = ("F8_E4M3", codes), meant * each
        return {"format": form, "group_size": size}, {"weight": stored, "weight_scale": ("F32", scales)}, values

    return write


def wide_float8(weight: np.ndarray) -> Stored:
    codes, meant = e5m2(weight * 64)
    parts: Parts = {"weight": ("F8_E5M2", codes), "weight_scale": ("F32", np.array(1 / 64, np.float32))}
    return {"format": "float8_e5m2", "full_precision_matrix_mult": True}, parts, meant / 64


def int8(size: int = 0, inside: bool = False) -> Callable[[np.ndarray], Stored]:
    """size: columns rotated together, 0 for none. inside: the settings of the rotation are in "params"."""

    def write(weight: np.ndarray) -> Stored:
        turned = rotated(weight, size) if size else weight.astype(float)
        scales = (np.abs(turned).max(1, keepdims=True) / 127).astype(np.float32)
        integers = np.rint(turned / scales).astype(np.int8)
        values = integers * scales
        options = {"convrot": True, "convrot_groupsize": size} if size else {}
        settings = {"format": "int8_tensorwise"} | ({"params": options} if inside else options)
        parts: Parts = {"weight": ("I8", integers), "weight_scale": ("F32", scales)}
        return settings, parts, rotated(values, size) if size else values

    return write


def mxfp8(weight: np.ndarray) -> Stored:
    full = padded(weight, 32)
    largest = np.abs(full.reshape(len(full), -1, 32)).max(-1)
    exponents = np.where(largest > 0, np.ceil(np.log2(np.maximum(largest, 1e-30) / 448)), -127)
    each = np.repeat(np.exp2(exponents), 32, 1)
    codes, meant = float8(np.where(each > 1e-30, full / each, 0))
    parts: Parts = {
        "weight": ("F8_E4M3", codes),
        "weight_scale": ("F8_E8M0", tiles((exponents + 127).astype(np.uint8))),
    }
    return {"format": "mxfp8"}, parts, meant * each.astype(np.float32)


def nvfp4(factor: float | None = None) -> Callable[[np.ndarray], Stored]:
    def write(weight: np.ndarray) -> Stored:
        full = padded(weight, 16)
        largest = np.abs(full.reshape(len(full), -1, 16)).max(-1) / 6
        whole = np.float32(factor or largest.max() / 448)
        codes, scales = float8(largest / whole)
        each = np.repeat(scales * whole, 16, 1)
        small = nearest(np.abs(full) / np.maximum(each, 1e-30), E2M1[:8]) | np.uint8(8) * (full < 0)
        parts: Parts = {
            "weight": ("U8", pairs(small, upper_first=True)),
            "weight_scale": ("F8_E4M3", tiles(codes)),
            "weight_scale_2": ("F32", np.array(whole)),
        }
        return {"format": "nvfp4"}, parts, E2M1[small] * each

    return write


def four_bits(weight: np.ndarray) -> Stored:
    turned = rotated(weight, 64)
    scales = (np.abs(turned).max(1) / 7).astype(np.float32)
    integers = np.rint(turned / scales[:, None]).astype(np.int8)
    parts: Parts = {"weight": ("I8", pairs(integers).view(np.int8)), "weight_scale": ("F32", scales)}
    settings = {"format": "convrot_w4a4", "convrot_groupsize": 64, "linear_dtype": "int8"}
    return settings, parts, rotated(integers * scales[:, None].astype(float), 64)


def grouped(bits: int = 4, book: bool = False, correction: bool = False) -> Callable[[np.ndarray], Stored]:
    def write(weight: np.ndarray) -> Stored:
        turned = rotated(weight, 16).reshape(len(weight), -1, 16)
        half = 1 << (bits - 1)
        levels = np.sort(np.r_[np.linspace(-1, 1, 14), -0.02, 0.02]) if book else np.arange(-half, half)
        levels = levels.astype(np.float32)
        middle = (turned.max(-1) + turned.min(-1)) / 2 * correction
        scale = np.abs(turned - middle[..., None]).max(-1) / levels.max()
        channel = (scale.max(1) * np.abs(levels).max() / 127).astype(np.float32)
        stored, ratio = float8(scale / channel[:, None])
        codes = np.abs((turned - middle[..., None])[..., None] / np.maximum(scale, 1e-30)[..., None, None] - levels)
        codes = codes.argmin(-1).reshape(weight.shape)
        integers = np.clip(np.rint(levels[codes] * np.repeat(ratio, 16, 1)), -127, 127)
        values = integers * channel[:, None].astype(float)
        packed = pairs(codes & 15)
        if bits == 6:
            upper = sum((codes[:, column::4] >> 4) << (2 * column) for column in range(4))
            packed = np.hstack((packed, upper.astype(np.uint8)))
        parts: Parts = {
            "weight": ("I8", packed.view(np.int8)),
            "weight_s_rel": ("U8" if bits == 6 else "F8_E4M3", stored),
            "weight_s_channel": ("F32", channel),
        }
        if book:
            parts["weight_codebook"] = "F32", levels
        if correction:
            shift = middle.T.astype(np.float32)
            parts["weight_correction"] = "F32", shift
            values += np.repeat(shift.T, 16, 1)
        settings = {"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": 16}
        return settings, parts, rotated(values, 16)

    return write


def awq(weight: np.ndarray) -> Stored:
    groups = weight.reshape(len(weight), -1, 32)
    low, high = groups.min(-1), groups.max(-1)
    scales = ((high - low) / 15).astype(np.float32)
    zeros = (low + 8 * scales).astype(np.float32)
    codes = np.clip(np.rint((groups - low[..., None]) / scales[..., None]), 0, 15)
    values = ((codes - 8).astype(np.float32) * scales[..., None] + zeros[..., None]).reshape(weight.shape)
    parts: Parts = {
        "weight": ("I8", pairs(codes.reshape(weight.shape)).view(np.int8)),
        "weight_scale": ("F32", scales.T),
        "weight_zeros": ("F32", zeros.T),
    }
    return {"format": "awq_w4a16", "group_size": 32}, parts, values


def nf4(weight: np.ndarray) -> Stored:
    absmax = np.abs(weight.reshape(-1, 64)).max(1)
    codes = nearest(weight.reshape(-1, 64) / absmax[:, None], NF4)
    parts: Parts = {
        "weight": ("U8", pairs(codes, upper_first=True).reshape(-1, 1)),
        "weight_scale": ("F32", absmax),
        "weight_code": ("F32", NF4),
    }
    settings = {"format": "nf4", "shape": list(weight.shape), "blocksize": 64, "dtype": "bfloat16"}
    return settings | {"double_quant": False}, parts, (NF4[codes] * absmax[:, None]).reshape(weight.shape)


def plain(weight: np.ndarray) -> Stored:
    codes, meant = float8(np.clip(weight, -448, 448))
    assert checkpoint_formats()["F8_E4M3"].decode(codes)[0, 0] == meant[0, 0]
    return {}, {"weight": ("F8_E4M3", codes)}, meant


CASES: dict[str, Callable[[np.ndarray], Stored]] = {
    "plain": plain,
    "old-float8": old_float8,
    "float8-rows": of_rows,
    "float8-wide": wide_float8,
    "float8-named-rows": named_rows,
    "float8-squares": squares("float8_e4m3fn_blockwise", 4),
    "int8-squares": squares("int8_blockwise", 2),
    "int8": int8(),
    "int8-rotated": int8(64),
    "int8-params": int8(256, inside=True),
    "mxfp8": mxfp8,
    "nvfp4": nvfp4(),
    "nvfp4-power": nvfp4(1 / 32),
    "w4a4": four_bits,
    "w4a8": grouped(),
    "w4a8-codebook": grouped(book=True),
    "w4a8-correction": grouped(correction=True),
    "w6a8": grouped(6),
    "awq": awq,
    "nf4": nf4,
}
ROTATED = ("int8-rotated", "int8-params", "w4a4", "w4a8", "w4a8-codebook", "w4a8-correction", "w6a8")
