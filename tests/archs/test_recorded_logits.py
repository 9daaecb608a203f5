"""Compare small checkpoints with what transformers computes of them: tests/data/recorded_logits.jsonl, one case a line,
as `tests.verify.record` writes them. Weights are made from the case's name and theirs.

The cases' names begin with the setting that they are about:

    f1    Cohere2 MoE: dense layers at the start rotate, though they see everything
    f2    a window as long as the context, or longer, hides nothing
    f3    Qwen3-Next, Qwen3.5: the convolution has the config's activation
    f4    Qwen3-VL MoE: weights of the chosen experts are always rescaled, there is no key for that
    f5    GPT-NeoX has its own names of rotary settings; the common ones mean nothing to it
    umt5  umT5: a head that the config unties and the checkpoint lacks is the embedding, and scaled
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools

from ..conftest import DATA
from . import checkpoints

CASES = {
    case["name"]: case
    for case in map(json.loads, (DATA / "recorded_logits.jsonl").read_text(encoding="utf-8").splitlines())
}
TOKENIZER = checkpoints.FAMILIES / "tokenizers"


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) < 1e-4


def difference(name: str, folder: Path) -> float:
    """Return the largest |difference| of our logits to those recorded, over the standard deviation of the latter."""
    case = CASES[name]
    build(case, folder / "model")
    gguftools.convert(folder / "model", folder / "f32.gguf", "f32")
    model = gguftools.load(folder / "f32.gguf")
    found = model.logits(case["ids"], case["decoder_ids"])[np.ix_(case["positions"], case["tokens"])]
    return float(np.abs(found - np.array(case["logits"])).max() / case["std"])


def build(case: dict[str, Any], folder: Path) -> None:
    """Write a case's checkpoint."""
    shutil.copytree(TOKENIZER / case["tokenizer"], folder)
    (folder / "encodings.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for tensor, dtype, shape, mean, std in case["tensors"]:
        values = checkpoints.stored(checkpoints.values(case["name"], tensor, shape, mean, std), dtype)
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
