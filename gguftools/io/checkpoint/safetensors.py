"""Read and write safetensors files: headers are validated, rows are read by position.

8 bytes  length of the header, little endian
header   JSON: {"name": {"dtype": "BF16", "shape": [rows, width], "data_offsets": [begin, end]}, ...}
data     offsets count from here; tensors cover it without gaps

Files come from strangers: everything in the header is checked before it is used.

A written file gets its name only after the `safetensors` package has opened it (`check_written`). The package is not
used for more, as of 0.8, for these reasons; the tests check each fact, and fail when one is no longer true:

- It writes tensors that are in memory as a whole, by address. Exports decode a block of rows at a time.
- Its numpy interface has neither BF16 nor 8-bit floats, and gives no bytes of types that it does not know.
- It maps a file, and one that is cut short meanwhile ends the process (SIGBUS); reading by calls came with 0.8.
- It silently takes the last of two tensors of one name, and ignores unknown parts of an entry: another program could
  see another file. Its errors tell neither which values were found nor what was expected.
- It opens local files, where ours may be on the hub: there a header and ranges are read.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.small_files import check_not_pointer, parse_json
from quants import FormatError, Tensor
from quants.errors import FileError
from quants.spelling import quote

from ..gguf.reader import MAX_VALUES, map_file
from ..gguf.writer import TensorInfo
from ..positioned import PositionedInput, ReadBytes, row_reader
from .dtypes import checkpoint_formats

MAX_HEADER = 100_000_000  # as in the format's own library
MAX_SHAPE = 64
MAX_METADATA = 32 << 20  # characters of `__metadata__`: pictures and workflows of ComfyUI have a few million


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, sorted by name as the format's own library lists them.

    Raises FileError.
    """
    path = Path(path)
    buffer = map_file(path, "safetensors file")
    header = buffer[: header_size(path, buffer, len(buffer))]
    return tensors_of(path, header, len(buffer), PositionedInput(path).read)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the strings of a safetensors file's `__metadata__` by key; of several shards, each has its own.

    Raises FileError.
    """
    path = Path(path)
    buffer = map_file(path, "safetensors file")
    return metadata_of(path, buffer[: header_size(path, buffer, len(buffer))])


def metadata_of(path: Path, header: NDArray[np.uint8]) -> dict[str, str]:
    """Return the strings of `__metadata__` in a header; none where it is missing. Raises FileError."""
    metadata = _parse_object(path, header).get("__metadata__")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise FileError(f"{path}: __metadata__ is {type(metadata).__name__} in the header; an object was expected")
    for key, value in metadata.items():
        if not isinstance(value, str):
            what = f"{quote(key)} as {type(value).__name__}"
            raise FileError(f"{path}: __metadata__ has {what} in the header; strings were expected")
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > MAX_METADATA:
        raise FileError(f"{path}: __metadata__ has {size:,} characters; at most {MAX_METADATA:,} were expected")
    return metadata


def header_size(path: Path, beginning: NDArray[np.uint8], size: int) -> int:
    """Return the bytes before the data, from the first 64 bytes (or more) of a file of `size` bytes.

    Raises FileError.
    """
    check_not_pointer(path, beginning[:64].tobytes())
    length = int.from_bytes(beginning[:8].tobytes(), "little")
    if size < 10 or length > MAX_HEADER or not length:
        raise FileError(f"{path} is not a safetensors file: it starts with {beginning[:8].tobytes()!r}")
    if length > size - 8:
        raise FileError(f"{path} is cut short: its header has {length} bytes, the file {size}", hint="fetch it again")
    return 8 + length


def tensors_of(path: Path, header: NDArray[np.uint8], size: int, read: ReadBytes) -> dict[str, Tensor]:
    """Return the tensors that the header of a file of `size` bytes describes; read(begin, end): its bytes.

    Raises FileError.
    """
    entries = _parse_header(path, header)
    tensors = {name: _tensor(path, name, entries[name], len(header), read) for name in sorted(entries)}
    _check_coverage(path, entries, size - len(header), size)
    return tensors


def data_edges(header: NDArray[np.uint8]) -> list[int]:
    """Return where tensors begin in the file, and where the last one ends; the header must have passed `tensors_of`."""
    entries = _parse_header(Path(), header)
    offsets = {0, *(offset for entry in entries.values() for offset in entry["data_offsets"])}
    return [len(header) + offset for offset in sorted(offsets)]


def _parse_header(path: Path, header: NDArray[np.uint8]) -> dict[str, Any]:
    """Return the header's entries for tensors."""
    entries = _parse_object(path, header)
    entries.pop("__metadata__", None)
    return entries


def _parse_object(path: Path, header: NDArray[np.uint8]) -> dict[str, Any]:
    try:
        entries = parse_json(header[8:].tobytes(), unique=True)
    except ValueError as error:
        raise FileError(f"{path}: the header is not valid JSON: {error}") from error
    if not isinstance(entries, dict):
        raise FileError(f"{path}: the header is not a JSON object")
    return entries


def _tensor(path: Path, name: str, entry: Any, data_start: int, read_bytes: ReadBytes) -> Tensor:
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
    if (needed := rows * row_bytes) != end - begin:
        what = f"of shape {shape} and dtype {form.name}"
        raise FileError(f"{where} {what} needs {needed} bytes; it has {end - begin}")
    read = row_reader(read_bytes, data_start + begin, tuple(shape), form)
    return Tensor(name, tuple(shape), form, read, f"{path.name}: {name}")


WRITTEN = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2")  # what we write


def plan_safetensors(tensors: Sequence[TensorInfo], metadata: Mapping[str, str]) -> bytes:
    """Return all bytes before the data, which begins at a multiple of 8. tensors: wide types first, for alignment."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for tensor in tensors:
        if tensor.format.name not in WRITTEN:
            raise FileError(f"tensor {quote(tensor.name)} is {tensor.format.name}, a type that safetensors cannot hold")
        offsets = [end, end + tensor.nbytes]
        header[tensor.name] = {"dtype": tensor.format.name, "shape": list(tensor.shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def check_written(fd: int, path: Path) -> None:
    """Check the header of an open file, which becomes `path`, with the format's own library. Raises FileError.

    Nothing is checked if the system has no name for an open file (Windows).
    """
    from safetensors import SafetensorError, safe_open  # here, as exports alone need it

    name = f"/dev/fd/{fd}"
    if not os.path.lexists(name):
        return
    try:
        with safe_open(name, "numpy"):
            pass
    except SafetensorError as error:
        problem = f"{path} would be refused by the safetensors library: {error}"
        raise FileError(problem, hint="this is a fault of gguftools: report it with the command") from error


def _is_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n <= MAX_VALUES for n in values)


def _check_coverage(path: Path, header: dict[str, Any], data_bytes: int, file_bytes: int) -> None:
    """Raise FileError unless the tensors cover each byte of the data once."""
    expected, previous = 0, "the header"
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != expected:
            problem = "overlaps" if begin < expected else "leaves a gap after"
            where = f"{quote(name)} begins at {begin} and {problem} {previous}"
            raise FileError(f"{path}: {where}, which ends at {expected}")
        expected, previous = end, quote(name)
    if expected > data_bytes:
        problem = f"its header needs {file_bytes - data_bytes + expected} bytes, the file has {file_bytes}"
        raise FileError(f"{path} is cut short: {problem}", hint="fetch it again")
    if expected < data_bytes:
        raise FileError(f"{path} has {data_bytes - expected} bytes after the last tensor")
