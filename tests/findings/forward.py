"""Small checkpoints with what transformers computes of them: forward.json, one case a line, as `tests.verify.record`
writes them. Weights are made from the case's name and theirs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import gguftools

from ..archs import checkpoints

CASES = {
    case["name"]: case
    for case in map(json.loads, Path(__file__).with_suffix(".json").read_text(encoding="utf-8").splitlines())
}
TOKENIZER = checkpoints.FAMILIES / "tokenizers"


def names(row: str) -> list[str]:
    """The cases of a row of the findings."""
    return [name for name in CASES if name.startswith(f"{row}-")]


def difference(name: str, folder: Path) -> float:
    """Largest |difference| of our logits to those recorded, over the standard deviation of the latter."""
    case = CASES[name]
    build(case, folder / "model")
    gguftools.convert(folder / "model", folder / "f32.gguf", "f32")
    model = gguftools.load(folder / "f32.gguf")
    found = model.logits(case["ids"], case["decoder_ids"])[np.ix_(case["positions"], case["tokens"])]
    return float(np.abs(found - np.array(case["logits"])).max() / case["std"])


def build(case: dict[str, Any], folder: Path) -> None:
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
