"""Quantized checkpoints of image models, as ComfyUI reads them, become the files of the values that they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from quants.errors import ModelError

from ...archs.prequantized.comfy_writers import Stored, as_bytes, int8, mxfp8, nvfp4, old_float8, plain
from ..image_checkpoints import flux, t5

WRITERS: dict[str, Callable[[np.ndarray], Stored]] = {
    "scaled fp8": old_float8,
    "nvfp4": nvfp4(),
    "mxfp8": mxfp8,
    "int8 with a rotation": int8(64),
}
DTYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8"}


def save(tensors: dict[str, tuple[str, np.ndarray]], path: Path) -> None:
    """Write a safetensors file of any dtypes."""
    header, end, data = dict[str, Any](), 0, []
    for name, (dtype, values) in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [end, end + len(raw)]}
        end += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def packed(write: Callable[[np.ndarray], Stored], prefix: str = "") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the stored tensors of a Flux whose blocks are packed, and its values."""
    stored, values = {}, {}
    for name, array in flux(dtype=np.float32).items():
        if array.ndim < 2 or "blocks." not in name:
            stored[prefix + name], values[name] = ("F32", array), array
            continue
        settings, parts, meant = write(array)
        layer = f"{prefix}{name.removesuffix('.weight')}."
        stored |= {f"{layer}{ending}": each for ending, each in parts.items()}
        if settings:
            stored[f"{layer}comfy_quant"] = as_bytes(settings)
        values[name] = np.asarray(meant[: array.shape[0], : array.shape[1]], np.float32)
    return stored, values


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("name", WRITERS)
def test_packed_weights_are_their_values(tmp_path, name, prefix):
    stored, values = packed(WRITERS[name], prefix)
    save(stored, tmp_path / "packed.safetensors")
    save_file(values, tmp_path / "plain.safetensors")
    for outtype in ("F32", "Q4_K_M"):
        for source in ("packed", "plain"):
            gguftools.convert(tmp_path / f"{source}.safetensors", tmp_path / f"{source}-{outtype}.gguf", outtype)
        files = (tmp_path / f"{source}-{outtype}.gguf" for source in ("packed", "plain"))
        ours, wanted = (gguftools.open(path).tensors for path in files)
        assert list(ours) == list(wanted) == sorted(values)
        for each, tensor in wanted.items():
            assert ours[each].format == tensor.format
            if outtype == "F32":
                assert np.allclose(ours[each], tensor, atol=1e-6), each
            else:  # a value that is near the middle of two may become the other
                assert np.mean(np.asarray(ours[each]) != np.asarray(tensor)) < 0.05, each


def test_8_bit_floats_without_scales_are_numbers_in_bf16(tmp_path):
    stored, values = packed(plain)
    save(stored, tmp_path / "fp8.safetensors")
    report = gguftools.convert(tmp_path / "fp8.safetensors", f"{tmp_path}/")
    assert report.outputs[0].file.name == "fp8-BF16.gguf"
    with gguftools.open(report.outputs[0].file) as model:
        for name in ("double_blocks.0.img_attn.qkv.weight", "single_blocks.1.linear2.weight"):
            assert np.array_equal(model.tensors[name], values[name])  # BF16 holds all 8-bit floats


def test_scales_that_are_missing_are_refused(tmp_path):
    stored, _ = packed(old_float8)
    stored = {name: each for name, each in stored.items() if not name.endswith(".scale_weight")}
    stored["scaled_fp8"] = ("F8_E4M3", np.zeros(2, np.uint8))
    save(stored, tmp_path / "x.safetensors")
    with pytest.raises(ModelError):
        gguftools.convert(tmp_path / "x.safetensors", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_a_packed_text_encoder_of_a_whole_checkpoint(tmp_path):
    stored, _ = packed(old_float8, "model.diffusion_model.")
    values = {}
    for name, array in t5().items():
        is_matrix = name.endswith((".q.weight", ".wo.weight"))
        _, parts, meant = old_float8(array.astype(np.float32)) if is_matrix else ({}, {}, array.astype(np.float32))
        layer = f"text_encoders.t5xxl.transformer.{name.removesuffix('weight')}"
        stored |= {f"{layer}{ending}": each for ending, each in parts.items()}
        stored |= {} if parts else {f"{layer}weight": ("F16", array)}
        values[name] = meant
    save(stored, tmp_path / "all.safetensors")
    gguftools.convert(tmp_path / "all.safetensors", tmp_path / "t5.gguf", "F32", part="t5xxl")
    with gguftools.open(tmp_path / "t5.gguf") as model:
        assert len(model.tensors) == len(values)
        wanted = values["encoder.block.1.layer.0.SelfAttention.q.weight"]
        assert np.allclose(model.tensors["enc.blk.1.attn_q.weight"], wanted, atol=1e-6)
