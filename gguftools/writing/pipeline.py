"""From tensors to files: plan → tasks → bytes at known offsets.

Every file is laid out before anything is read. A task is a range of rows of one source tensor: read and decoded once,
encoded in the format that each file wants of it, written where it belongs. Tasks are independent and rows are encoded
one by one, so the bytes depend neither on the number of threads nor on the order in which tasks end.
"""

import hashlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from quants import Format, Tensor
from quants.arguments import thread_count
from quants.compilation import Codec, compile_codecs
from quants.errors import FileError, FormatError

from ..files.atomic import NOTHING, Reads
from ..files.gguf.reader import DEFAULT_ALIGNMENT
from ..files.gguf.writer import VERSION, Figures, Layout, OpenGguf, TensorInfo, create_ggufs, plan_file
from .finiteness import check_finite, check_finite_values, not_finite
from .resume import resumable_gguf
from .row_blocks import BLOCK_VALUES, Progress, RowBlock, over_rows, row_ranges, run_blocks

log = logging.getLogger(__name__)
DEFAULT_MEMORY = 512 << 20

Floats = NDArray[np.float32]


class Ready(NamedTuple):
    """Rows that were encoded before: a tensor in the format that is wanted; what was said of it, and by what it was
    made, for who takes up a run again.
    """

    tensor: Tensor
    remark: Mapping[str, Any]
    made_by: str


class Item(NamedTuple):
    """A tensor of a file to be written.

    tensor: what is read; its name is the name that is stored. format: what it is stored in.
    importance: float32 (groups, width) or None; each group weighs an equal share of the rows (one group an expert).
    ready: where its rows are encoded already.
    """

    tensor: Tensor
    format: Format
    importance: Floats | None = None
    ready: Ready | None = None

    @property
    def is_copy(self) -> bool:
        return self.format.name == self.tensor.format.name

    @property
    def nbytes(self) -> int:
        return self.tensor.rows * self.format.row_bytes(self.tensor.width) + self.format.tail_bytes


@dataclass(frozen=True)
class FilePlan:
    """A GGUF file to be written. Items appear in it in the order given; byte_order is little or big."""

    path: Path
    metadata: Metadata
    items: tuple[Item, ...]
    alignment: int = DEFAULT_ALIGNMENT
    reserve: int = 0
    magic: bytes = b"GGUF"
    version: int = VERSION
    byte_order: str = "little"

    @cached_property
    def layout(self) -> Layout:
        infos = [TensorInfo(item.tensor.name, item.tensor.shape, item.format) for item in self.items]
        return plan_file(self.metadata, infos, self.alignment, self.reserve, self.magic, self.version, self.byte_order)

    def digest(self) -> str:
        """What decides the bytes, but for the source's values."""
        found = hashlib.sha256(self.layout.header)
        for item in self.items:
            found.update(b"|" if item.importance is None else item.importance.tobytes())
            found.update(b"" if item.ready is None else item.ready.made_by.encode())
        return found.hexdigest()


class Resumable(NamedTuple):
    """Files that an interrupted run leaves half done for the next; resume: go on where an earlier one stopped."""

    fingerprint: list[list[Any]]  # `resume.fingerprint` of what tensors are read from
    resume: bool = False


class TensorStats(NamedTuple):
    """What came of a tensor in a file. Errors are relative to the source's values; None where nobody asked.

    rmse: root mean square error. max_error: the largest. seconds: of all threads together.
    """

    name: str
    rmse: float | None = None
    max_error: float | None = None
    seconds: float = 0.0


class WriteResult(NamedTuple):
    """What `write_files` did: for each file, its tensors in order; and how long it took."""

    files: list[list[TensorStats]]
    seconds: float = 0.0
    compile_seconds: float = 0.0
    source_bytes: int = 0
    resumed_bytes: int = 0


@dataclass
class Task(RowBlock):
    """Rows of a tensor, for (file, index of the tensor in it, item)."""

    wanted: Sequence[tuple[int, int, Item]]


def write_files(
    files: Sequence[FilePlan], *, threads: int | None = None, memory: int = DEFAULT_MEMORY, statistics: bool = False,
    progress: Progress | None = None, executor: Executor | None = None, resumable: Resumable | None = None,
    overwrite: bool = False, reads: Reads = NOTHING, finite: bool = True,
) -> WriteResult:  # fmt: skip
    """Write GGUF files from tensors, in one pass over the sources; all appear under their names when all are done.

    The same Tensor object in several files is read and decoded once.
    threads: default all cores. executor: what runs tasks instead, in this process. memory: bytes that running tasks may
    hold together. statistics: measure errors, which costs decoding what was encoded.
    progress(source bytes done, of how many, tensor or what is being compiled): called in this thread.
    resumable: leave half-done files behind. overwrite: replace files that exist, but for those of `reads`.
    finite: refuse NaN and infinities. Raises FileError or FormatError, naming tensor, row and column for these.
    """
    started = time.perf_counter()
    threads = thread_count(threads)
    made: dict[int, tuple[Tensor, list[tuple[int, int, Item]]]] = {}  # of each source, in the order of the files
    for number, file in enumerate(files):
        for index, item in enumerate(file.items):
            made.setdefault(id(item.tensor), (item.tensor, []))[1].append((number, index, item))
    sources = list(made.values())
    tasks = [
        Task(tensor, start, stop, wanted)
        for tensor, wanted in sources
        for start, stop in row_ranges(tensor, _block_rows(tensor, wanted, threads, memory, statistics))
    ]
    total = sum(tensor.nbytes for tensor, _ in sources)
    report = progress or (lambda *_: None)
    compiling = compile_codecs(_codecs(files, statistics), threads, lambda name: report(0, total, f"compiling {name}"))
    log.info("kernels are there after %.3f s; %d blocks of rows for %d threads", compiling, len(tasks), threads)
    figures: dict[tuple[int, int], list[tuple[int, Figures]]] = defaultdict(list)
    with _open_sinks(files, resumable, overwrite, reads) as sinks:
        writer = _Writer(files, sinks, statistics, finite)
        known = (task for task in tasks if None not in writer.known(task))
        resumed = sum((task.stop - task.start) * task.tensor.row_bytes for task in known)
        run = run_blocks(tasks, writer.perform, total, threads=threads, executor=executor, progress=report)
        with closing(run) as results:
            for task, each in results:
                for (number, index, _), spent in zip(task.wanted, each, strict=True):
                    figures[number, index].append((task.start, spent))
        reads.check_unchanged()
    stats = [
        [_sum_up(item, figures[number, index], statistics) for index, item in enumerate(file.items)]
        for number, file in enumerate(files)
    ]
    return WriteResult(stats, time.perf_counter() - started, compiling, total, resumed)


@contextmanager
def _open_sinks(
    files: Sequence[FilePlan], resumable: Resumable | None, overwrite: bool, reads: Reads
) -> Iterator[Sequence[OpenGguf]]:
    if resumable is None:
        with create_ggufs([(file.path, file.layout) for file in files], overwrite, reads) as outputs:
            yield outputs
        return
    with ExitStack() as stack:
        partial = (
            resumable_gguf(file.path, file.layout, file.digest(), *resumable, overwrite, reads) for file in files
        )
        yield [stack.enter_context(output) for output in partial]


def _block_rows(
    tensor: Tensor, wanted: Sequence[tuple[int, int, Item]], threads: int, memory: int, statistics: bool
) -> int:
    """Rows of a task: few enough for the cache and for the memory that one of `threads` tasks may hold."""
    encoded = max(item.format.row_bytes(tensor.width) for _, _, item in wanted)
    arrays = 4 if statistics else 2  # the values, what encoders keep beside them; what was decoded, the difference
    row_bytes = tensor.row_bytes + encoded + 4 * tensor.width * arrays
    return max(1, min(BLOCK_VALUES // max(1, tensor.width), memory // threads // max(1, row_bytes)))


def _codecs(files: Sequence[FilePlan], statistics: bool) -> Iterator[Codec]:
    """What will encode and decode, so that nothing is compiled within a task."""
    for item in (item for file in files for item in file.items if not item.is_copy):
        yield Codec(item.format.name, "encode" if item.importance is None else "weighted")
        if not item.tensor.format.dialect:
            yield Codec(item.tensor.format.name, "decode")
        if statistics:
            yield Codec(item.format.name, "decode")
            yield Codec("F32", "deviation")


def _sum_up(item: Item, figures: list[tuple[int, Figures]], statistics: bool) -> TensorStats:
    figures.sort(key=itemgetter(0))  # for one sum whatever the order
    name, seconds = item.tensor.name, sum(f.seconds for _, f in figures)
    if not statistics:
        return TensorStats(name, seconds=seconds)
    rmse = math.sqrt(sum(f.squares or 0.0 for _, f in figures) / max(1, item.tensor.size))
    return TensorStats(name, rmse, max((f.largest or 0.0 for _, f in figures), default=0.0), seconds)


@dataclass(frozen=True)
class _Writer:
    """What is done with a block of rows: read once, encoded and written for each file that wants it."""

    files: Sequence[FilePlan]
    sinks: Sequence[OpenGguf]
    statistics: bool
    finite: bool

    def known(self, task: Task) -> list[Figures | None]:
        """The figures of each item whose rows an earlier run wrote."""
        known = [self.sinks[number].covered(index, task.start, task.stop) for number, index, _ in task.wanted]
        return [None if self.statistics and figures and figures.squares is None else figures for figures in known]

    def perform(self, task: Task) -> list[Figures]:
        """Read, encode and write a task's rows where they are not known. Returns the figures of each item."""
        known = self.known(task)
        done = [figures for figures in known if figures is not None]
        if len(done) == len(known):
            return done
        started = time.perf_counter()
        raw = read_rows(task.tensor, task.start, task.stop, self.finite)
        is_copied = all(item.is_copy for _, _, item in task.wanted)
        values: NDArray[Any] = raw if is_copied else decode_rows(task.tensor, raw, task.start)
        done = []
        for (number, index, item), figures in zip(task.wanted, known, strict=True):
            if figures is None:
                encoded = raw if item.is_copy else encode_rows(item, values, task.start)
                figures = self.measure(item, values, encoded, time.perf_counter() - started)
                if self.files[number].byte_order == "big":
                    encoded = item.format.swap_byte_order(encoded)
                tail = task.tensor.tail if item.is_copy and task.stop == task.tensor.rows else None
                self.sinks[number].write(index, task.start, encoded, figures, tail)
                started = time.perf_counter()
            done.append(figures)
        return done

    def measure(self, item: Item, values: Floats, encoded: NDArray[np.uint8], seconds: float) -> Figures:
        """What encoding cost: the errors, where they are asked for."""
        if not self.statistics or item.is_copy:
            return Figures(0.0, 0.0, seconds) if self.statistics else Figures(seconds=seconds)
        from quants.kernels.deviation import deviation

        return Figures(*deviation(item.format.decode(encoded), values), seconds)


def read_rows(tensor: Tensor, start: int, stop: int, finite: bool = True) -> NDArray[np.uint8]:
    """Stored bytes of rows. Raises FileError; FormatError for a NaN or infinity, if all are to be finite."""
    try:
        raw = tensor.raw(start, stop)
    except OSError as error:
        raise FileError(f"{tensor.where} cannot be read: {error.strerror or error}") from error
    if finite:
        check_finite(tensor, raw, start)
    return raw


def decode_rows(tensor: Tensor, raw: NDArray[np.uint8], start: int) -> Floats:
    """Values of rows from `start` on. Raises FormatError for a NaN or infinity that decoding a block format gives."""
    values = tensor.format.decode(np.ascontiguousarray(raw))
    if tensor.format.is_quantized:
        check_finite_values(tensor, values, start)
    return values


def encode_rows(item: Item, values: Floats, first_row: int) -> NDArray[np.uint8]:
    """Encode rows from `first_row` on, each with its group's importance, or take those that are ready.

    Raises FormatError beyond the range of F16.
    """
    if item.ready is not None:
        return item.ready.tensor.raw(first_row, first_row + len(values))
    if item.importance is None or len(item.importance) == 1:
        encoded = item.format.encode(values, None if item.importance is None else item.importance[0])
        # Finite values that became infinite in F16 make a model that doesn't work.
        if item.format.name == "F16" and (wrong := not_finite(item.format, encoded)) is not None:
            row, column = divmod(int(np.argmax(wrong)), item.tensor.width)
            where = f"row {first_row + row}, column {column}"
            problem = f"tensor {item.tensor.name!r} has a value in {where} that is beyond the range of F16"
            raise FormatError(problem, hint="choose BF16 or F32 for it")
        return encoded
    share = item.tensor.rows // len(item.importance)
    pieces, start = [], 0
    while start < len(values):
        group = (first_row + start) // share
        stop = min(len(values), (group + 1) * share - first_row)
        pieces.append(item.format.encode(values[start:stop], item.importance[group]))
        start = stop
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def scan(tensors: Iterable[Tensor], *, threads: int | None = None, progress: Progress | None = None) -> None:
    """Read and decode every value of every tensor. Raises FormatError for the first NaN or infinity."""

    def look(tensor: Tensor, start: int, stop: int) -> None:
        raw = read_rows(tensor, start, stop)
        if tensor.format.is_quantized:
            decode_rows(tensor, raw, start)

    for _ in over_rows(tensors, look, threads=threads, progress=progress):
        pass
