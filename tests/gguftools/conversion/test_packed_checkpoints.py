"""A Llama checkpoint quantized by every method: converted, it is what the dequantized checkpoint becomes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.io.checkpoint.safetensors import open_safetensors
from runtime.model import RunningModel
from tests.archs.prequantized.writers import BLOCKS, CASES, Parts, write_safetensors
from tests.conftest import ROOT

MODEL = ROOT / "examples" / "austen-4m"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
TOKENS = [512, 7, 300, 41, 999, 3, 1500, 64]


def checkpoints(folder: Path, name: str) -> tuple[Path, Path]:
    """The model's first layer and its head, quantized by a method, and in the float32 that this means."""
    settings, write = CASES[name]
    packed: Parts = {}
    plain: Parts = {}
    for each, tensor in open_safetensors(MODEL / "model.safetensors").items():
        if ".layers." in each and ".layers.0." not in each:
            continue
        if "_proj" in each:
            parts, values = write(tensor.float32())
            packed |= {each.removesuffix("weight") + part: stored for part, stored in parts.items()}
            plain[each] = "F32", values
        else:
            packed[each] = plain[each] = "BF16", tensor.elements().reshape(tensor.shape)
    return checkpoint(folder / "packed", packed, settings), checkpoint(folder / "plain", plain, {})


def checkpoint(folder: Path, tensors: Parts, settings: dict[str, Any]) -> Path:
    folder.mkdir()
    for file in TOKENIZER:
        shutil.copy(MODEL / file, folder)
    config = json.loads((MODEL / "config.json").read_text()) | {"num_hidden_layers": 1}
    config |= {"quantization_config": settings} if settings else {}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_conversion_is_that_of_the_dequantized_checkpoint(name: str, tmp_path: Path) -> None:
    folders = checkpoints(tmp_path, name)
    files = [tmp_path / f"{folder.name}.gguf" for folder in folders]
    for folder, file in zip(folders, files, strict=True):
        convert(folder, file, "F32")
    packed, plain = (gguftools.open(file) for file in files)
    assert list(packed.tensors) == list(plain.tensors)
    for each, tensor in packed.tensors.items():
        np.testing.assert_array_equal(tensor.float32(), plain.tensors[each].float32())
    assert packed.tensors["blk.0.attn_q.weight"].format.name == BLOCKS.get(name, "F32")
    models = (RunningModel(each.metadata, each.tensors, precision="exact") for each in (packed, plain))
    logits, wanted = (model.logits(TOKENS) for model in models)
    assert np.isfinite(wanted).all()
    assert np.abs(logits - wanted).max() <= (1e-5 * wanted.std() if name in BLOCKS else 0)


def test_outtype_is_bfloat16_whatever_the_rest_is_stored_in(tmp_path: Path) -> None:
    packed, _ = checkpoints(tmp_path, "gptq-4")
    report = convert(packed, tmp_path)
    assert report.outputs[0].recipe == "BF16"
    assert gguftools.open(tmp_path / "packed-BF16.gguf").tensors["blk.0.attn_q.weight"].format.name == "BF16"


def test_a_recipe_is_made_of_the_decoded_weights(tmp_path: Path) -> None:
    for folder in checkpoints(tmp_path, "awq"):
        convert(folder, tmp_path / f"{folder.name}.gguf", "Q4_K_M")
    packed, plain = (gguftools.open(tmp_path / f"{kind}.gguf") for kind in ("packed", "plain"))
    assert any(tensor.format.name == "Q4_K" for tensor in packed.tensors.values())
    for each, tensor in packed.tensors.items():
        np.testing.assert_array_equal(tensor.raw(), plain.tensors[each].raw())
