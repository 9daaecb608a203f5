"""Build small checkpoints with other settings, convert and export them, and return what the export holds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import gguftools
from gguftools.conversion.export import export
from gguftools.io.checkpoint.folder import open_checkpoint

from ... import zoo_build
from ...archs import checkpoints
from ...conftest import SHARED

Arrays = dict[str, Any]


def build(entry: str, folder: Path) -> None:
    """A checkpoint of the zoo, or of tests/data/families."""
    if entry in checkpoints.entries():
        checkpoints.build(entry, folder)
        return
    zoo_build.build(SHARED / "zoo", entry, folder)


def exported(
    entry: str, work: Path, options: Mapping[str, Any] | None = None, change: Callable[[Arrays], Arrays] | None = None
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """config.json and the shapes of the tensors of an export. options: other values in the checkpoint's config.json.
    change: what is done to its tensors.
    """
    folder = work / entry
    build(entry, folder)
    if options is not None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | dict(options)), encoding="utf-8")
    if change is not None:
        arrays = {name: np.array(tensor.float32()) for name, tensor in open_checkpoint(folder).tensors.items()}
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        save_file(change(arrays), folder / "model.safetensors")
    gguftools.convert(folder, work / "file.gguf", "f32")
    shutil.rmtree(work / "back", ignore_errors=True)
    export(work / "file.gguf", work / "back")
    config = json.loads((work / "back" / "config.json").read_text(encoding="utf-8"))
    return config, {name: tensor.shape for name, tensor in open_checkpoint(work / "back").tensors.items()}


def with_biases(pattern: str) -> Callable[[Arrays], Arrays]:
    """A change: biases beside the weights whose names hold the pattern."""

    def change(arrays: Arrays) -> Arrays:
        found = {name: values for name, values in arrays.items() if re.search(rf"({pattern})\.weight$", name)}
        assert found
        return arrays | {
            name.removesuffix("weight") + "bias": np.full(values.shape[0], 0.1, np.float32)
            for name, values in found.items()
        }

    return change


def with_one_net(layer: int, width: int) -> Callable[[Arrays], Arrays]:
    """A change: one net in place of a layer's experts."""

    def change(arrays: Arrays) -> Arrays:
        start = f"model.layers.{layer}.mlp."
        hidden = arrays["model.norm.weight"].shape[0]
        shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
        kept = {name: values for name, values in arrays.items() if not name.startswith(start)}
        return kept | {f"{start}{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}

    return change


def without(pattern: str) -> Callable[[Arrays], Arrays]:
    """A change: no tensors whose names hold the pattern."""
    return lambda arrays: {name: values for name, values in arrays.items() if not re.search(pattern, name)}
