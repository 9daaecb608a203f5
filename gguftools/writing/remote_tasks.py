"""Describe tasks for other processes: rows of a tensor by its name, and where their bytes belong.

A task holds names, numbers and how to open its source, but no file and no values. A worker opens the source once, and
writes into the run's file if it sees that very file: it identifies it by a mark in the file's journal, which it checks
before each write. On another machine, it sends the bytes back.
"""

import pickle
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor, format_named
from quants.errors import FileError, FormatError
from quants.format import formats

from ..io.gguf.writer import Figures
from ..io.locks import NO_FILE, state_of
from ..io.shared_file import SharedFile
from ..io.stores.path import located
from .items import Groups, Piece, decode_rows, encode_piece, read_rows

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Source:
    """Describe how workers read tensors.

    reopen: returns them by name; a function of a module with plain arguments. states: name, bytes and time of change
    (ns) of each file, as this run read it. names: tensor names by the id of their `read`, which tells whether a tensor
    is still the opened one; not sent to workers.
    """

    reopen: Callable[[], Tensors]
    states: tuple[tuple[str, int, int], ...] = ()
    names: Mapping[int, str] = field(default_factory=dict, compare=False)

    @cached_property
    def description(self) -> bytes:
        """Return what is sent to workers."""
        return pickle.dumps((self.reopen, self.states))

    def name_of(self, tensor: Tensor) -> str | None:
        return self.names.get(id(tensor.read))


@dataclass(frozen=True)
class Job:
    """Hold what all tasks of a run share. files: None for one that only the run itself can write."""

    source: bytes
    files: tuple[SharedFile | None, ...]
    swapped: tuple[bool, ...]  # big-endian files
    statistics: bool
    finite: bool

    @cached_property
    def packed(self) -> bytes:
        return pickle.dumps((self.source, self.files, self.swapped, self.statistics, self.finite))


class FileRows(NamedTuple):
    """Describe what one file needs of a task's rows.

    file, place: numbers of the file, and of the tensor in it. format: None to copy. offset: in the file. tail: bytes
    after the rows.
    """

    file: int
    place: int
    format: str | None
    groups: Groups | None
    offset: int
    tail: NDArray[np.uint8] | None


class RowTask(NamedTuple):
    """Describe rows start … stop of a tensor of the source.

    raw: the rows, if workers cannot read them; then also format, width, and the tensor's origin for messages.
    """

    name: str
    start: int
    stop: int
    wanted: tuple[FileRows, ...]
    raw: NDArray[np.uint8] | None = None
    format: str = ""
    width: int = 0
    origin: str = ""


class WrittenRows(NamedTuple):
    """Report written rows. crc: crc32 of their bytes. data: the bytes, if the worker could not write them."""

    figures: Figures
    crc: int
    data: NDArray[np.uint8] | None


class Batch(NamedTuple):
    """Hold tasks that are sent to a worker together. job: its `packed`."""

    job: bytes
    tasks: tuple[RowTask, ...]


def known_to_workers(form: Format) -> bool:
    """Return True if another process finds the format by its name."""
    return formats().get(form.name) is form


def perform_batch(batch: Batch) -> list[list[WrittenRows]]:
    """Do tasks in this process: read, encode, write. Returns, for each task, what was written for each file.

    Raises FileError for a source that is another one here, and what reading and encoding raises.
    """
    job = _job(batch.job)
    return [list(_perform(job, task)) for task in batch.tasks]


@lru_cache(maxsize=4)
def _job(packed: bytes) -> Job:
    return Job(*pickle.loads(packed))


@lru_cache(maxsize=2)
def tensors_of(description: bytes) -> Tensors:
    """Return the tensors of a Source, opened once per process. Raises FileError if its files have changed."""
    reopen, states = pickle.loads(description)
    check_states(states)
    tensors: Tensors = reopen()
    return tensors


def check_states(states: Iterable[tuple[str, int, int]]) -> None:
    """Raise FileError if a file is not the one that the run read. See `Source.states`."""
    for name, size, changed in states:
        state = state_of(located(name))
        if state == NO_FILE:
            hint = "workers need the files of the source under the same names"
            raise FileError(f"{name} cannot be read by a worker: it is not there", hint)
        if state[2:] != (size, changed):
            raise FileError(f"{name} was changed while it was read, or is another file for a worker", "run it again")


def encoded_pieces(
    tensor: Tensor, start: int, stop: int, pieces: Sequence[Piece], statistics: bool, finite: bool
) -> Iterator[tuple[NDArray[np.uint8], Figures]]:
    """Read rows once, and yield them encoded for each piece, with their figures. Raises FileError, FormatError."""
    started = time.perf_counter()
    raw = read_rows(tensor, start, stop, finite)
    is_copied = all(piece.is_copy for piece in pieces)
    values: NDArray[Any] = raw if is_copied else decode_rows(tensor, raw, start)
    for piece in pieces:
        encoded = raw if piece.is_copy else encode_piece(piece, values, start, tensor.name)
        seconds = time.perf_counter() - started
        yield encoded, _measured(piece, values, encoded, seconds) if statistics else Figures(seconds=seconds)
        started = time.perf_counter()


def _measured(piece: Piece, values: NDArray[Any], encoded: NDArray[np.uint8], seconds: float) -> Figures:
    if piece.is_copy:
        return Figures(0.0, 0.0, seconds)
    from quants.kernels.deviation import deviation

    return Figures(*deviation(piece.format.decode(encoded), values), seconds)


def _perform(job: Job, task: RowTask) -> Iterator[WrittenRows]:
    tensor = _tensor(job, task)
    pieces = [_piece(tensor, wanted) for wanted in task.wanted]
    made = encoded_pieces(tensor, task.start, task.stop, pieces, job.statistics, job.finite)
    for wanted, piece, (encoded, figures) in zip(task.wanted, pieces, made, strict=True):
        raw = np.ascontiguousarray(piece.format.swap_byte_order(encoded) if job.swapped[wanted.file] else encoded)
        crc, file = zlib.crc32(raw.reshape(-1).data), job.files[wanted.file]
        data = raw.reshape(-1) if wanted.tail is None else np.concatenate((raw.reshape(-1), wanted.tail))
        written = file is not None and file.write(data.data, wanted.offset)
        yield WrittenRows(figures, crc, None if written else raw)


def _tensor(job: Job, task: RowTask) -> Tensor:
    if task.raw is None:
        tensor = tensors_of(job.source).get(task.name)
        if tensor is None:
            raise FileError(f"a worker finds no tensor {task.name!r} in the source", "run it again")
        return tensor
    raw, first = task.raw, task.start

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        return raw[start - first : stop - first]

    return Tensor(task.name, (task.stop, task.width), format_named(task.format), read, task.origin)


def _piece(tensor: Tensor, wanted: FileRows) -> Piece:
    if wanted.format is None:
        return Piece(tensor.format, True)
    form = format_named(wanted.format)
    if not form.has_codec:
        raise FormatError(f"{form.name} cannot be encoded by a worker: it has another gguftools", "use one version")
    return Piece(form, False, wanted.groups)
