"""Write embedding vectors as .npy or JSON files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quants.arguments import PathLike
from quants.errors import OptionError

from ..io.atomic import InputFiles, atomic_output, check_target, output_path

if TYPE_CHECKING:
    from runtime.evaluation.pooling import Embeddings

NPY, JSON = ".npy", ".json"


def check_output(output: PathLike, reads: InputFiles, overwrite: bool) -> Path:
    """Return the path for vectors. Raises OptionError for another file type, and as `check_target`."""
    path = output_path(output)
    if path.suffix not in (NPY, JSON):
        raise OptionError(f"{path} is neither a {NPY} nor a {JSON} file", "name the output so")
    check_target(path, reads, overwrite)
    return path


def write_vectors(embeddings: "Embeddings", path: Path, reads: InputFiles, overwrite: bool) -> None:
    """Write vectors as .npy (float32, one row each), or as JSON with their report. Raises FileError."""
    with atomic_output(path, overwrite=overwrite, reads=reads) as file:
        if path.suffix == NPY:
            np.save(file, np.ascontiguousarray(embeddings.vectors, "<f4"), allow_pickle=False)
        else:
            file.write(json.dumps(embeddings.as_dict(), ensure_ascii=False).encode())
