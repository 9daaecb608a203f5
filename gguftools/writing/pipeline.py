"""Write tensors to files: plan → tasks → bytes at known offsets.

Every file is laid out before anything is read. A task is a range of rows of one source tensor: read and decoded once,
encoded in the format of each file, written to its place. Tasks are independent and rows are encoded one by one, so the
bytes depend neither on the number of threads nor on the order in which tasks end.
"""

import hashlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
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
from quants import Tensor
from quants.arguments import thread_count
from quants.compilation import Codec, compile_codecs

from ..io.atomic import InputFiles, published_together
from ..io.gguf.reader import DEFAULT_ALIGNMENT
from ..io.gguf.writer import VERSION, Figures, Layout, OpenGguf, TensorInfo, create_ggufs, plan_file
from ..io.stores.path import StorePath
from .executors import leaves_process, run_on_executor
from .items import Item, decode_rows, piece, read_rows
from .options import WriteOptions
from .remote_tasks import (
    Batch,
    FileRows,
    Job,
    RowTask,
    Source,
    WrittenRows,
    encoded_pieces,
    known_to_workers,
    perform_batch,
)
from .resume import PartialGguf, resumable_gguf
from .row_blocks import BLOCK_VALUES, Progress, RowBlock, batched, over_rows, row_ranges, run_blocks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FilePlan:
    """Plan a GGUF file. Items appear in it in the order given; byte_order is little or big."""

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
        """Return a SHA-256 of all that decides the bytes but the source's values."""
        digest = hashlib.sha256(self.layout.header)
        for item in self.items:
            digest.update(b"|" if item.importance is None else item.importance.tobytes())
            digest.update(b"" if item.ready is None else item.ready.made_by.encode())
        return digest.hexdigest()


class Resumable(NamedTuple):
    """Make files that an interrupted run leaves for the next one.

    fingerprint: `resume.fingerprint` of the source. resume: go on from what an earlier run left.
    """

    fingerprint: list[list[Any]]  # `resume.fingerprint` of what tensors are read from
    resume: bool = False


class TensorStats(NamedTuple):
    """Measure a tensor in a file. Errors are relative to the source's values; None if not requested.

    rmse: root mean square error. max_error: the largest. seconds: of all threads.
    """

    name: str
    rmse: float | None = None
    max_error: float | None = None
    seconds: float = 0.0


class WriteResult(NamedTuple):
    """Report what `write_files` did: for each file its tensors in order, and how long it took."""

    files: list[list[TensorStats]]
    seconds: float = 0.0
    compile_seconds: float = 0.0
    source_bytes: int = 0
    resumed_bytes: int = 0


@dataclass
class Task(RowBlock):
    """Describe rows of a tensor, needed as (file, index of the tensor in it, item)."""

    wanted: Sequence[tuple[int, int, Item]]


def write_files(
    files: Sequence[FilePlan],
    write: WriteOptions = WriteOptions(),
    *,
    resumable: Resumable | None = None,
    finite: bool = True,
) -> WriteResult:
    """Write GGUF files from tensors, in one pass over the sources; all get their names when all are done.

    A Tensor object that is in several files is read and decoded once. Workers of an executor read by `write.source`
    what they can, and are sent the rest. resumable: leave half-done files after an interruption. finite: refuse NaN and
    infinities. Raises FileError; FormatError, naming tensor, row and column.
    """
    started = time.perf_counter()
    threads, executor = thread_count(write.threads), write.executor
    tasks = tasks_of(files, threads, write.memory, write.statistics)
    sources = {id(task.tensor): task.tensor for task in tasks}
    total = sum(tensor.nbytes for tensor in sources.values())
    report = write.progress or (lambda *_: None)
    compiling = compile_codecs(
        _codecs(files, write.statistics), threads, lambda name: report(0, total, f"compiling {name}")
    )
    log.info("kernels are there after %.3f s; %d blocks of rows for %d threads", compiling, len(tasks), threads)
    figures: dict[tuple[int, int], list[tuple[int, Figures]]] = defaultdict(list)
    with _open_sinks(files, resumable, write.overwrite, write.reads) as sinks:
        writer = _Writer(files, sinks, write.statistics, finite)
        known = (task for task in tasks if None not in writer.known(task))
        resumed = sum(task.nbytes for task in known)
        in_order = any(isinstance(file.path, StorePath) for file in files)  # early rows wait in memory
        if executor is not None and leaves_process(executor):
            run = _run_elsewhere(tasks, _sender(writer, write.source), executor, total, threads, report, in_order)
        else:
            run = run_blocks(
                tasks, writer.perform, total, threads=threads, executor=executor, progress=report, in_order=in_order
            )
        with closing(run) as results:
            for task, each in results:
                for (number, index, _), spent in zip(task.wanted, each, strict=True):
                    figures[number, index].append((task.start, spent))
        write.reads.check_unchanged()
    stats = [
        [_sum_up(item, figures[number, index], write.statistics) for index, item in enumerate(file.items)]
        for number, file in enumerate(files)
    ]
    return WriteResult(stats, time.perf_counter() - started, compiling, total, resumed)


def tasks_of(files: Sequence[FilePlan], threads: int, memory: int, statistics: bool) -> list[Task]:
    """Return the tasks that write these files, in the order of the sources: each row is in one. See `write_files`."""
    made: dict[int, tuple[Tensor, list[tuple[int, int, Item]]]] = {}  # by source, in the order of the files
    for number, file in enumerate(files):
        for index, item in enumerate(file.items):
            made.setdefault(id(item.tensor), (item.tensor, []))[1].append((number, index, item))
    return [
        Task(tensor, start, stop, wanted)
        for tensor, wanted in made.values()
        for start, stop in row_ranges(tensor, _block_rows(tensor, wanted, threads, memory, statistics))
    ]


@contextmanager
def _open_sinks(
    files: Sequence[FilePlan], resumable: Resumable | None, overwrite: bool, reads: InputFiles
) -> Iterator[Sequence[OpenGguf]]:
    if any(isinstance(file.path, StorePath) for file in files):
        from ..io.gguf.uploads import create_stored  # here, because few outputs are in stores

        sources = resumable.fingerprint if resumable is not None and resumable.resume else None
        made_from = None if sources is None else [[file.digest(), sources] for file in files]
        with create_stored([(file.path, file.layout) for file in files], overwrite, reads, made_from) as outputs:
            yield outputs
        return
    if resumable is None:
        with create_ggufs([(file.path, file.layout) for file in files], overwrite, reads) as outputs:
            yield outputs
        return
    with published_together(), ExitStack() as stack:
        partial = (
            resumable_gguf(file.path, file.layout, file.digest(), *resumable, overwrite, reads) for file in files
        )
        yield [stack.enter_context(output) for output in partial]


def _block_rows(
    tensor: Tensor, wanted: Sequence[tuple[int, int, Item]], threads: int, memory: int, statistics: bool
) -> int:
    """Return the rows of a task: few enough for the cache, and for the memory of one of `threads` tasks."""
    encoded = max(item.format.row_bytes(tensor.width) for _, _, item in wanted)
    arrays = 4 if statistics else 2  # values and the encoder's copy; for statistics also decoded values and differences
    row_bytes = tensor.row_bytes + encoded + 4 * tensor.width * arrays
    return max(1, min(BLOCK_VALUES // max(1, tensor.width), memory // threads // max(1, row_bytes)))


def _codecs(files: Sequence[FilePlan], statistics: bool) -> Iterator[Codec]:
    """Yield all codecs that tasks need, so that they are compiled before."""
    for item in (item for file in files for item in file.items if not item.is_copy):
        yield Codec(item.format.name, "encode" if item.importance is None else "weighted")
        if not item.tensor.format.dialect:
            yield Codec(item.tensor.format.name, "decode")
        if statistics:
            yield Codec(item.format.name, "decode")
            yield Codec("F32", "deviation")


def _sum_up(item: Item, figures: list[tuple[int, Figures]], statistics: bool) -> TensorStats:
    figures.sort(key=itemgetter(0))  # so that the sum does not depend on the order
    name, seconds = item.tensor.name, sum(f.seconds for _, f in figures)
    if not statistics:
        return TensorStats(name, seconds=seconds)
    rmse = math.sqrt(sum(f.squares or 0.0 for _, f in figures) / max(1, item.tensor.size))
    return TensorStats(name, rmse, max((f.largest or 0.0 for _, f in figures), default=0.0), seconds)


@dataclass(frozen=True)
class _Writer:
    """Read a block of rows once; encode and write it for each file."""

    files: Sequence[FilePlan]
    sinks: Sequence[OpenGguf]
    statistics: bool
    finite: bool

    def known(self, task: Task) -> list[Figures | None]:
        """Return the figures of each item whose rows an earlier run wrote, None for others."""
        known = [self.sinks[number].covered(index, task.start, task.stop) for number, index, _ in task.wanted]
        return [None if self.statistics and figures and figures.squares is None else figures for figures in known]

    def perform(self, task: Task) -> list[Figures]:
        """Read, encode and write a task's rows that are not written yet. Returns the figures of each item."""
        known = self.known(task)
        todo = [wanted for wanted, figures in zip(task.wanted, known, strict=True) if figures is None]
        made = self._written(task, todo)
        return [next(made) if figures is None else figures for figures in known]

    def _written(self, task: Task, todo: Sequence[tuple[int, int, Item]]) -> Iterator[Figures]:
        if not todo:
            return
        pieces = [piece(item, task.start, task.stop) for _, _, item in todo]
        made = encoded_pieces(task.tensor, task.start, task.stop, pieces, self.statistics, self.finite)
        for (number, index, item), (encoded, figures) in zip(todo, made, strict=True):
            if self.files[number].byte_order == "big":
                encoded = item.format.swap_byte_order(encoded)
            self.sinks[number].write(index, task.start, encoded, figures, _tail(task, item))
            yield figures


def _tail(task: Task, item: Item) -> NDArray[np.uint8] | None:
    """Return the bytes after a task's last row, of formats with a tail."""
    return task.tensor.tail if item.is_copy and task.stop == task.tensor.rows else None


def _sender(writer: _Writer, source: Source | None) -> "_Sender":
    shared = tuple(sink.shared() if isinstance(sink, PartialGguf) else None for sink in writer.sinks)
    swapped = tuple(file.byte_order == "big" for file in writer.files)
    description = b"" if source is None else source.description
    return _Sender(writer, source, Job(description, shared, swapped, writer.statistics, writer.finite))


@dataclass(frozen=True)
class _Sender:
    """Send tasks to other processes."""

    writer: _Writer
    source: Source | None
    job: Job

    def leaves(self, task: Task) -> bool:
        """Return True if another process can do the task: not if it is done or encoded, or if workers lack a format."""
        if None not in self.writer.known(task) or any(item.ready is not None for _, _, item in task.wanted):
            return False
        named = self.source is not None and self.source.name_of(task.tensor) is not None
        formats = [item.format for _, _, item in task.wanted if not item.is_copy]
        return all(map(known_to_workers, formats if named else [*formats, task.tensor.format]))

    def sent(self, task: Task) -> RowTask:
        """Return the task as it is sent: names, numbers and importance; rows only if workers cannot read them."""
        wanted = tuple(
            FileRows(
                number,
                index,
                None if item.is_copy else item.format.name,
                item.groups(task.start, task.stop),
                self.writer.files[number].layout.row_offset(index, task.start),
                _tail(task, item),
            )
            for (number, index, item), figures in zip(task.wanted, self.writer.known(task), strict=True)
            if figures is None
        )
        tensor, name = task.tensor, self.source.name_of(task.tensor) if self.source else None
        if name is not None:
            return RowTask(name, task.start, task.stop, wanted)
        raw = np.ascontiguousarray(read_rows(tensor, task.start, task.stop, self.writer.finite))
        more = raw, tensor.format.name, tensor.width, tensor.origin
        return RowTask(tensor.name, task.start, task.stop, wanted, *more)

    def taken(self, task: Task, sent: RowTask, wrote: Sequence[WrittenRows]) -> list[Figures]:
        """Note, or write, the results of a task. Returns the figures of each item."""
        known, made = self.writer.known(task), zip(sent.wanted, wrote, strict=True)
        results = []
        for figures in known:
            if figures is None:
                wanted, (figures, crc, data) = next(made)
                sink = self.writer.sinks[wanted.file]
                if data is not None:
                    sink.write(wanted.place, task.start, data, figures, wanted.tail)
                elif isinstance(sink, PartialGguf):
                    sink.note(wanted.place, task.start, task.stop, crc, figures)
            results.append(figures)
        return results


def _run_elsewhere(
    tasks: Sequence[Task],
    sender: _Sender,
    executor: Executor,
    total: int,
    threads: int,
    progress: Progress,
    in_order: bool,
) -> Generator[tuple[Task, list[Figures]], None, None]:
    """Run tasks as `run_blocks`, on an executor of other processes; tasks that must run here are run first."""
    away = [task for task in tasks if sender.leaves(task)]
    gone = set(map(id, away))
    home = [task for task in tasks if id(task) not in gone]
    yield from run_blocks(home, sender.writer.perform, total, threads=threads, progress=progress)
    done = sum(task.nbytes for task in home)
    under_way: dict[int, list[Task]] = {}

    def batches() -> Iterator[Batch]:
        for batch in batched(away):
            sent = Batch(sender.job.packed, tuple(map(sender.sent, batch)))
            under_way[id(sent)] = batch
            yield sent

    for sent, results in run_on_executor(executor, perform_batch, batches(), in_order=in_order):
        for task, each, wrote in zip(under_way.pop(id(sent)), sent.tasks, results, strict=True):
            yield task, sender.taken(task, each, wrote)
            done += task.nbytes
            progress(done, total, task.tensor.name)


def scan(tensors: Iterable[Tensor], *, threads: int | None = None, progress: Progress | None = None) -> None:
    """Read and decode every value of every tensor. Raises FormatError for the first NaN or infinity."""

    def look(tensor: Tensor, start: int, stop: int) -> None:
        raw = read_rows(tensor, start, stop)
        if tensor.format.is_quantized:
            decode_rows(tensor, raw, start)

    for _ in over_rows(tensors, look, threads=threads, progress=progress):
        pass
