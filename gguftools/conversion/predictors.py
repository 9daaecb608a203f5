"""Open predictor folders of PowerInfer: model_N.pt for each layer, and a threshold in config.json."""

import re
from pathlib import Path

from archs.small_files import read_json_object
from quants import Tensor
from quants.arguments import PathLike
from quants.errors import FileError

from ..io.checkpoint.torch_pickle import open_torch
from ..io.naming import hint_for_absent

LINEAR = ("fc1.weight", "fc2.weight")


def open_predictor(folder: PathLike) -> tuple[list[tuple[Tensor, Tensor]], float | None]:
    """Return the two matrices of each layer, of which only headers are read, and the threshold of scores, or None.

    Raises FileError.
    """
    folder = Path(folder)
    layers = []
    for path in numbered_files(folder, "model"):
        tensors = open_torch(path)
        if tensors.keys() != set(LINEAR) or any(len(tensor.shape) != 2 for tensor in tensors.values()):
            names = ", ".join(sorted(tensors)) or "nothing"
            raise FileError(f"{path} holds {names}; the matrices {' and '.join(LINEAR)} were expected")
        layers.append((tensors[LINEAR[0]], tensors[LINEAR[1]]))
    config = folder / "config.json"
    threshold = read_json_object(config).get("sparse_threshold") if config.exists() else None
    if threshold is not None and not (type(threshold) in (int, float) and abs(threshold) < 1e30):
        raise FileError(f"{config}: sparse_threshold is {threshold!r}; a number was expected")
    return layers, None if threshold is None else float(threshold)


def numbered_files(folder: Path, stem: str) -> list[Path]:
    """Return STEM_0.pt, STEM_1.pt, … of a folder, in order of layers. Raises FileError for none, or a missing one."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}", hint_for_absent(folder))
    matches = ((path, re.fullmatch(rf"{stem}_(0|[1-9]\d{{0,5}})\.pt", path.name)) for path in folder.iterdir())
    numbered = {int(match[1]): path for path, match in matches if match}
    if not numbered:
        raise FileError(f"{folder} has no files {stem}_0.pt, {stem}_1.pt, …, one for each layer")
    missing = sorted(set(range(max(numbered) + 1)) - set(numbered))
    if missing:
        raise FileError(f"{folder} has {stem}_{max(numbered)}.pt, but no {stem}_{missing[0]}.pt")
    return [numbered[i] for i in sorted(numbered)]
