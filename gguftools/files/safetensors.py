"""Reading safetensors files: a map of the file and a validated header.

    8 bytes  length of the header, little endian
    header   JSON: {"name": {"dtype": "BF16", "shape": [rows, width], "data_offsets": [begin, end]}, ...}
    data     offsets count from here; tensors cover it without gaps

Files come from strangers: everything the header says is checked before it is believed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import FormatError, Tensor
from quants.errors import FileError

from .dtypes import checkpoint_formats
from .gguf_reader import MAX_VALUES, map_file
from .strings import quote

MAX_HEADER = 100_000_000  # as in the format's own library
MAX_SHAPE = 64
GIT_LFS_POINTER = b"version https://git-lfs"


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, sorted by name as the format's own library lists them.

    Raises FileError, naming the tensor, for anything but a sound file.
    """
    path = Path(path)
    buffer = map_file(path, "safetensors file")
    header, start = _read_header(path, buffer)
    data = buffer[start:]
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, header[name], data) for name in sorted(header)}
    _check_coverage(path, header, len(data), len(buffer))
    return tensors


def _read_header(path: Path, buffer: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    check_not_pointer(path, buffer)
    length = int.from_bytes(buffer[:8].tobytes(), "little")
    if len(buffer) < 10 or length > MAX_HEADER or not length:
        raise FileError(f"{path} is not a safetensors file: it starts with {buffer[:8].tobytes()!r}")
    if length > len(buffer) - 8:
        raise FileError(
            f"{path} is cut short: its header has {length} bytes, the file {len(buffer)}", hint="fetch it again"
        )
    try:
        header = json.loads(buffer[8 : 8 + length].tobytes().decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise FileError(f"{path}: the header is not a JSON object")
    return header, 8 + length


def check_not_pointer(path: Path, buffer: NDArray[np.uint8]) -> None:
    """Raise FileError where a file is what git leaves in place of one that it keeps elsewhere."""
    if buffer[: len(GIT_LFS_POINTER)].tobytes() == GIT_LFS_POINTER:
        raise FileError(f"{path} is a pointer of git-lfs, not the weights themselves", hint="run `git lfs pull` there")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{quote(name)} appears twice")
        found[name] = value
    return found


def _tensor(path: Path, name: str, entry: Any, data: NDArray[np.uint8]) -> Tensor:
    where = f"{path}: tensor {quote(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FileError(f"{where} must have dtype, shape and data_offsets, and nothing else")
    form = checkpoint_formats().get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if form is None:
        raise FileError(f"{where} has the unknown dtype {quote(entry['dtype'])}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _is_sizes(shape) or len(shape) > MAX_SHAPE or math.prod(n for n in shape if n) > MAX_VALUES:
        raise FileError(f"{where} has the shape {shape!r:.200}; sizes were expected")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileError(f"{where} has the data_offsets {offsets!r:.200}; begin and end were expected")
    begin, end = offsets
    rows = math.prod(shape[:-1])
    try:
        row_bytes = form.row_bytes(shape[-1] if shape else 1)
    except FormatError as error:
        raise FileError(f"{where}: {error}") from error
    if rows * row_bytes != end - begin:
        needed = f"{rows * row_bytes} bytes; it has {end - begin}"
        raise FileError(f"{where} of shape {shape} and dtype {form.name} needs {needed}")
    raw = data[begin:end]

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        return raw.reshape(rows, row_bytes)[start:stop]

    return Tensor(name, tuple(shape), form, read, f"{path.name}: {name}")


def _is_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n <= MAX_VALUES for n in values)


def _check_coverage(path: Path, header: dict[str, Any], data_bytes: int, file_bytes: int) -> None:
    """Tensors must cover the data, each byte once."""
    expected, previous = 0, "the header"
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != expected:
            problem = "overlaps" if begin < expected else "leaves a gap after"
            where = f"{quote(name)} begins at {begin} and {problem} {previous}"
            raise FileError(f"{path}: {where}, which ends at {expected}")
        expected, previous = end, quote(name)
    if expected > data_bytes:
        wanted = file_bytes - data_bytes + expected
        raise FileError(
            f"{path} is cut short: its header says {wanted} bytes, the file has {file_bytes}", hint="fetch it again"
        )
    if expected < data_bytes:
        raise FileError(f"{path} has {data_bytes - expected} bytes after the last tensor")
