"""Record what transformers and llama.cpp's converter make of the small checkpoints in tests/data/towers.

    python -m tests.verify.towers CONVERTER [NAME …]

CONVERTER is llama.cpp's convert_hf_to_gguf.py. A folder has a config.json and what else such a checkpoint has beside
weights. Written into it: `spec.json`, the tensors that transformers' class has for that config, a line each as in
tests/data/families; and `reference.json`, what the converter writes with --mmproj: keys, tensors with shape and their
types for each of OUTTYPES, and the sha256 of the four files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

import gguftools
from tests.archs import checkpoints
from tests.archs.checkpoints import OUTTYPES, TOWERS

Row = tuple[str, str, list[int], float, float]

# How published checkpoints begin names, where transformers 5 saves them otherwise.
PUBLISHED = {
    "gemma3": {"vision_tower.": "vision_tower.vision_model."},
    "llava-1-5": {"vision_tower.": "vision_tower.vision_model."},
}

# What the converter has to find names begin with, to do what it means to do: of Pixtral it looks for the embedding of
# [IMG_BREAK] after it has dropped everything of the language model; of InternVL it drops what has no "model.".
AS_READ = {
    "pixtral": {"language_model.model.": "model."},
    "mistral3": {"language_model.model.": "model."},
    "internvl-hf": {"vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector."},
}


def record_spec(name: str) -> None:
    """The tensors of the class; spec.json stays where transformers has no such class."""
    config = json.loads((TOWERS / name / "config.json").read_text(encoding="utf-8"))
    hf_class = getattr(transformers, config["architectures"][0], None)
    if hf_class is None:
        return
    full = transformers.AutoConfig.for_model(**config)
    with tempfile.TemporaryDirectory() as folder:
        hf_class._from_config(full, dtype=torch.float32).save_pretrained(folder)
        saved = load_file(Path(folder, "model.safetensors"))
    tensors = {_published(name, key): values for key, values in saved.items()}
    lines = ",\n".join(json.dumps(_row(*each)) for each in sorted(tensors.items()))
    (TOWERS / name / "spec.json").write_text(f'{{"tensors": [\n{lines}\n]}}\n', encoding="utf-8")


def _published(entry: str, name: str) -> str:
    for saved, published in PUBLISHED.get(entry, {}).items():
        if name.startswith(saved) and not name.startswith(published):
            return published + name.removeprefix(saved)
    return name


def _row(name: str, values: torch.Tensor) -> Row:
    """Matrices about zero, vectors about what the class begins with."""
    mean = float(f"{values.double().mean():.2g}") if values.ndim < 2 else 0.0
    return name, "BF16", list(values.shape), mean, 0.15 if values.ndim > 1 else 0.1


def record_reference(name: str, converter: Path) -> str:
    """What is to be said of it: nothing, or what the converter says where it takes no such checkpoint."""
    found: dict[str, Any] = {"keys": {}, "tensors": {}, "files": {}}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, output = Path(folder, name), Path(folder, "mmproj.gguf")
        checkpoints.build_tower(name, checkpoint, AS_READ.get(name, {}))
        for outtype in OUTTYPES:
            command = [sys.executable, str(converter), str(checkpoint), "--mmproj", "--outfile", str(output)]
            said = subprocess.run([*command, "--outtype", outtype], capture_output=True, text=True, check=False)
            if said.returncode:
                return said.stderr[-600:]
            with gguftools.open(output) as model:
                for tensor in model.tensors.values():
                    of_name = found["tensors"].setdefault(tensor.name, [list(tensor.shape)])
                    of_name.append(tensor.format.name)
                if outtype == OUTTYPES[0]:
                    found["keys"] = {key: _plain(model.metadata[key]) for key in model.metadata}
            found["files"][outtype] = sha256(output.read_bytes()).hexdigest()
    (TOWERS / name / "reference.json").write_text(_lines(found), encoding="utf-8")
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    return [each.item() if isinstance(each, np.generic) else each for each in value]


def _lines(found: dict[str, Any]) -> str:
    """JSON with a line for each key and tensor."""
    parts = []
    for part, entries in found.items():
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        parts.append(f'"{part}": {{\n{lines}\n}}')
    return "{" + ",\n".join(parts) + "}\n"


def main(arguments: list[str]) -> None:
    converter, *names = arguments
    for name in names or checkpoints.towers():
        record_spec(name)
        print(name, record_reference(name, Path(converter)))


if __name__ == "__main__":
    main(sys.argv[1:])
