"""What is quantized: a GGUF file, a split set, or a Hugging Face folder on its way to GGUF."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from quants import Tensor
from quants.errors import OptionError
from quants.tensor import ReadRows

from .files.atomic import Reads
from .files.gguf.reader import DEFAULT_ALIGNMENT, GgufFile, open_gguf
from .files.locks import State, state_of
from .files.positioned import PositionedInput

if TYPE_CHECKING:
    from .conversion.convert import Converted

PathLike = str | os.PathLike[str]
KEPT_OPEN = 16  # shards; of a set of more, each is opened for each read


@dataclass(frozen=True)
class Input:
    """What is quantized. files: all that its tensors' values come from. shards: tensor names of each.

    origin: what decides values beside the files. states: what the files were when they were opened.
    """

    path: Path
    metadata: Metadata
    tensors: Mapping[str, Tensor]
    files: Sequence[Path]
    shards: Sequence[Sequence[str]] = ()
    magic: bytes = b"GGUF"
    alignment: int = DEFAULT_ALIGNMENT
    origin: Sequence[Sequence[str]] = ()
    states: Mapping[Path, State] = field(default_factory=dict)

    @property
    def reads(self) -> Reads:
        """What must not be written while this is read."""
        return Reads((self.path, *self.files), self.states)


def open_input(path: Path) -> Input:
    """A GGUF file, a split set or a Hugging Face folder, ready to be quantized. Raises FileError, ModelError."""
    if path.is_dir():
        from .conversion.convert import open_converted

        return converted_input(open_converted(path))
    file = open_gguf(path)
    shards = [list(part.tensors) for part in file.parts]
    return Input(
        file.path, file.metadata, read_by_calls(file), file.shards, shards, file.magic, file.alignment,
        states=file.states,
    )  # fmt: skip


def selected(tensors: Mapping[str, Tensor], pattern: str | None) -> list[Tensor]:
    """Tensors whose name the regular expression is found in. Raises OptionError for a bad expression or no match."""
    if pattern is None:
        return list(tensors.values())
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"--tensors {pattern!r} is not a regular expression: {error}") from error
    found = [t for name, t in tensors.items() if expression.search(name)]
    if not found:
        raise OptionError(f"no tensor's name matches {pattern!r}")
    return found


def read_by_calls(file: GgufFile) -> dict[str, Tensor]:
    """The tensors of a GGUF file, read by system calls instead of through a map. See `files.positioned`."""
    tensors = {}
    for part in file.parts:
        opened = PositionedInput(part.path, keep_open=len(file.parts) <= KEPT_OPEN)
        for name, tensor in part.tensors.items():
            read = _reader(opened, tensor, part.offsets[name], part.byte_order)
            tensors[name] = Tensor(name, tensor.shape, tensor.format, read, tensor.origin)
    return tensors


def _reader(file: PositionedInput, tensor: Tensor, offset: int, byte_order: str) -> ReadRows:
    row_bytes, form = tensor.row_bytes, tensor.format

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        raw = file.read(offset + start * row_bytes, offset + stop * row_bytes)
        rows = raw.reshape(stop - start, row_bytes)
        return rows if byte_order == "little" else form.swap_byte_order(rows)

    return read


def converted_input(converted: Converted) -> Input:
    """A checkpoint that is being converted, ready to be quantized without a file between."""
    from .conversion.convert import FILE_TYPES, with_file_type

    metadata = with_file_type(converted.metadata, FILE_TYPES["F16"])  # the keys' places; their values are set later
    files, magic, origin = converted.files, converted.magic, converted.origin
    states = {path: state_of(path) for path in files}
    return Input(
        converted.checkpoint.folder, metadata, converted.tensors, files, magic=magic, origin=origin, states=states
    )
