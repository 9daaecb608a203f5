"""Small GGUF files for tests, written by our own writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from archs.metadata import Metadata, Value
from archs.values import value_of
from gguftools.io.atomic import NOTHING, InputFiles
from gguftools.io.gguf.writer import Layout, OpenGguf, create_ggufs
from gguftools.writing.items import Item
from gguftools.writing.options import WriteOptions
from gguftools.writing.pipeline import FilePlan, write_files
from quants import Tensor, format_named, from_array


@contextmanager
def create_gguf(path: Path, layout: Layout, overwrite: bool = False, reads: InputFiles = NOTHING) -> Iterator[OpenGguf]:
    """One file of `create_ggufs`."""
    with create_ggufs([(Path(path), layout)], overwrite, reads) as (output,):
        yield output


def metadata_of(values: Mapping[str, Any]) -> Metadata:
    """Of the types that follow from the data, whatever types the keys should have."""
    metadata = Metadata()
    for key, value in values.items():
        metadata[key] = value if isinstance(value, Value) else value_of(key, value, None)
    return metadata


def write_model(path: Path, metadata: Metadata, tensors: Mapping[str, Any], form: str | None = None) -> Path:
    """A file of arrays or Tensors; matrices of floats in the format `form` if one is given."""
    items = []
    for name, values in tensors.items():
        tensor = values if isinstance(values, Tensor) else from_array(name, np.asarray(values, np.float32))
        encode = form and len(tensor.shape) > 1 and not tensor.format.is_quantized
        items.append(Item(tensor.renamed(name), format_named(form) if encode and form else tensor.format))
    write_files([FilePlan(path, metadata, tuple(items))], write=WriteOptions(overwrite=True))
    return path


def edited(source: Path, target: Path, changes: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> Path:
    """A copy of a GGUF file with other metadata (None removes a key) and some tensors replaced (None removes one)."""
    from gguftools.models.model import open as open_file

    opened = open_file(source)
    metadata, found = opened.metadata.copy(), dict(opened.tensors)
    for key, value in changes.items():
        if value is None:
            del metadata[key]
        elif isinstance(value, Value):
            metadata.set(key, value.data, value.type, value.element)
        else:
            metadata[key] = value
    for name, values in (tensors or {}).items():
        found.pop(name, None)
        if values is not None:
            found[name] = values
    return write_model(target, metadata, found)
