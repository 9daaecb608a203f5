"""What is quantized: a GGUF file, a split set, or a Hugging Face folder on its way to GGUF."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from quants import Tensor
from quants.errors import FileError

from .files.endian import swap_rows
from .files.gguf_reader import DEFAULT_ALIGNMENT, GgufFile, open_gguf

if TYPE_CHECKING:
    from .conversion import Converted

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Input:
    """What is quantized. files: all that its tensors' values come from. shards: tensor names of each.

    mapped: tensors that are views of file maps, from which `tensors` are made. origin: what decides values beside the
    files.
    """

    path: Path
    metadata: Metadata
    tensors: Mapping[str, Tensor]
    files: Sequence[Path]
    shards: Sequence[Sequence[str]] = ()
    magic: bytes = b"GGUF"
    alignment: int = DEFAULT_ALIGNMENT
    mapped: Mapping[str, Tensor] = field(default_factory=dict)
    origin: Sequence[Sequence[str]] = ()


def open_input(path: Path) -> Input:
    """A GGUF file, a split set or a Hugging Face folder, ready to be quantized. Raises FileError, ModelError."""
    if path.is_dir():
        from .conversion import open_converted

        return converted_input(open_converted(path))
    file = open_gguf(path)
    shards = [list(part.tensors) for part in file.parts]
    return Input(file.path, file.metadata, read_by_calls(file), file.shards, shards, file.magic, file.alignment)


def read_by_calls(file: GgufFile) -> dict[str, Tensor]:
    """The tensors of a GGUF file, read by system calls instead of through a map.

    A disk that fails under a map, or a file that is cut short, kills the process; a call returns an error. And pages
    read through a map count as the process's memory.
    """
    tensors = {}
    for part in file.parts:
        rows = _RowFile(part.path)
        for name, tensor in part.tensors.items():
            tensors[name] = replace(tensor, read=rows.reader(tensor, part.offsets[name], part.byte_order))
    return tensors


class _RowFile:
    """An open file that rows are read from; closed when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
        weakref.finalize(self, os.close, self.fd)

    def reader(self, tensor: Tensor, offset: int, byte_order: str) -> Callable[[int, int], NDArray[np.uint8]]:
        row_bytes, form = tensor.row_bytes, tensor.format

        def read(start: int, stop: int) -> NDArray[np.uint8]:
            rows = np.empty((stop - start, row_bytes), np.uint8)
            self.fill(rows.reshape(-1).data, offset + start * row_bytes)
            return rows if byte_order == "little" else swap_rows(form, rows)

        return read

    def fill(self, data: memoryview, position: int) -> None:
        """Read `data` full. Raises OSError, FileError where the file ends before."""
        while data:
            count = os.preadv(self.fd, [data], position)
            if not count:
                raise FileError(f"{self.path} ends at byte {position}: it was cut short while it was read")
            data, position = data[count:], position + count


def converted_input(converted: Converted) -> Input:
    """A checkpoint that is being converted, ready to be quantized without a file between."""
    from .conversion import FILE_TYPES, with_file_type

    metadata = with_file_type(converted.metadata, FILE_TYPES["F16"])  # the keys' places; their values are set later
    return Input(
        converted.checkpoint.folder, metadata, converted.tensors, converted.files, magic=converted.magic,
        mapped=converted.checkpoint.mapped, origin=converted.origin,
    )  # fmt: skip
