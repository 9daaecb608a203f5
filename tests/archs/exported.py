"""Headers of files beside the config.json that was verified of their exports: `python -m tests.verify.export --record`.

One line a file: what its metadata says of the model, its tensors with their shapes (and the values of those that the
config is found by), and what the export says: the config and the names and shapes of its tensors.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from archs.plans.export import ExportPlan, plan_export
from archs.schema import TOKENS
from quants import Tensor, from_array
from tests.conftest import DATA

FILE = DATA / "exports.jsonl.gz"
SAID = ("general.architecture", "tokenizer.ggml.model")  # what else of the metadata the way back depends on


def line(name: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What is recorded of a file whose export is right."""
    start = (f"{metadata['general.architecture']}.", "xielu.", "diffusion.")
    keys = {key: plain(metadata[key]) for key in metadata if key.startswith(start) or key in SAID}
    values = {name: plain(tensor.float32()) for name, tensor in tensors.items() if name.startswith("rope_f")}
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    said = {"name": name, "keys": keys, "tensors": shapes, "values": values}
    if integers := [name for name, tensor in tensors.items() if tensor.format.name == "I32"]:
        said["integers"] = integers
    if named := named_tokens(metadata):
        said["named"] = named
    return {**said, **found(plan_export(metadata, tensors))}


def named_tokens(metadata: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Ids of special tokens with their texts, by which families of one architecture are told apart."""
    texts = metadata.get(TOKENS, ())
    ids = {key: int(metadata[key]) for key in metadata if key.endswith("_token_id") and key.startswith("tokenizer.")}
    return {key: [number, texts[number]] for key, number in ids.items() if number < len(texts)}


def plain(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic, str)) and hasattr(value, "__len__"):
        return list(value)
    return value.tolist() if isinstance(value, np.ndarray) else value.item() if isinstance(value, np.generic) else value


def found(rebuilt: ExportPlan) -> dict[str, Any]:
    """What an export says, floats to nine digits: logarithms differ in their last ones between machines."""
    shapes = sorted((name, list(tensor.shape)) for name, tensor in rebuilt.tensors.items())
    return {"config": rounded(rebuilt.config), "names": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def again(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What an export of the recorded file says now."""
    keys = {
        key: np.array(value) if isinstance(value, list) and not isinstance(value[0], str) else value
        for key, value in recorded["keys"].items()
    }
    values = {name: np.array(each, np.float32) for name, each in recorded["values"].items()}
    zeros = dict.fromkeys(recorded.get("integers", ()), np.int32(0))
    tensors = {
        name: from_array(name, values.get(name, np.broadcast_to(zeros.get(name, np.float32(0)), shape)))
        for name, shape in recorded["tensors"].items()
    }
    if named := recorded.get("named"):
        texts = dict(named.values())
        keys |= {key: number for key, (number, _) in named.items()}
        keys[TOKENS] = [texts.get(number, "") for number in range(recorded["tensors"]["token_embd.weight"][0])]
    return found(plan_export(keys, tensors))


def lines() -> list[dict[str, Any]]:
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def keep(recorded: list[dict[str, Any]], path: Path = FILE) -> None:
    """Add lines to those that are there; one replaces that of its name."""
    named = {each["name"]: each for each in (*lines(), *recorded)}
    text = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in named.values())
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
