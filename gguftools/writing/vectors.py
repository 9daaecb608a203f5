"""Vectors of texts as files: .npy, which numpy and others read, or JSON."""

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
    """Where vectors may be written. Raises OptionError for another kind of file, and as `check_target` does."""
    path = output_path(output)
    if path.suffix not in (NPY, JSON):
        raise OptionError(f"{path} is neither a {NPY} nor a {JSON} file", "name the output so")
    check_target(path, reads, overwrite)
    return path


def write_vectors(found: "Embeddings", path: Path, reads: InputFiles, overwrite: bool) -> None:
    """float32, a row each, as .npy; or JSON with what is said of them. Raises FileError."""
    with atomic_output(path, overwrite=overwrite, reads=reads) as file:
        if path.suffix == NPY:
            np.save(file, np.ascontiguousarray(found.vectors, "<f4"), allow_pickle=False)
        else:
            file.write(json.dumps(found.as_dict(), ensure_ascii=False).encode())
