"""From tensors to files: plan → tasks → bytes at known offsets.

Every file is laid out before anything is read. A task is a range of rows of one source tensor: read and decoded once,
encoded in the format that each file wants of it, written where it belongs. Tasks are independent and rows are encoded
one by one, so the bytes depend neither on the number of threads nor on the order in which tasks end.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from quants import Format, Tensor
from quants.compilation import Codec, compile_codecs
from quants.errors import FileError, FormatError, OptionError

from ..files.atomic import NOTHING, Reads
from ..files.gguf.reader import DEFAULT_ALIGNMENT
from ..files.gguf.writer import Layout, OpenGguf, TensorInfo, create_ggufs, plan_file
from .resume import Figures, resumable_gguf

log = logging.getLogger(__name__)
DEFAULT_MEMORY = 512 << 20
BLOCK_VALUES = 1 << 20  # values of a task: 4 MB of float32, which fits in a core's cache
# Bits of infinity, for formats whose values have bytes of their own; NaN has these too.
EXPONENTS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F64": ("<u8", 0x7FF << 52)}

Floats = NDArray[np.float32]
Progress = Callable[[int, int, str], None]


class Source(Protocol):
    """Anything that has metadata and named tensors: a GGUF file, the plan of a conversion."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Item:
    """A tensor of a file to be written.

    tensor: what is read; its name is the name that is stored. format: what it is stored in.
    importance: float32 (groups, width) or None; each group weighs an equal share of the rows (one group an expert).
    """

    tensor: Tensor
    format: Format
    importance: Floats | None = None

    @property
    def is_copy(self) -> bool:
        return self.format.name == self.tensor.format.name

    @property
    def nbytes(self) -> int:
        return self.tensor.rows * self.format.row_bytes(self.tensor.width)


@dataclass(frozen=True)
class FilePlan:
    """A GGUF file to be written. Items appear in it in the order given."""

    path: Path
    metadata: Metadata
    items: tuple[Item, ...]
    alignment: int = DEFAULT_ALIGNMENT
    reserve: int = 0
    magic: bytes = b"GGUF"

    @cached_property
    def layout(self) -> Layout:
        infos = [TensorInfo(item.tensor.name, item.tensor.shape, item.format) for item in self.items]
        return plan_file(self.metadata, infos, self.alignment, self.reserve, self.magic)

    def digest(self) -> str:
        """What decides the bytes, but for the source's values."""
        found = hashlib.sha256(self.layout.header)
        for item in self.items:
            found.update(b"|" if item.importance is None else item.importance.tobytes())
        return found.hexdigest()


@dataclass(frozen=True)
class Resumable:
    """Files that an interrupted run leaves half done for the next. See `resume`.

    identity: `resume.identity` of what tensors are read from. take_up: go on where an earlier run stopped.
    """

    identity: list[list[Any]]
    take_up: bool = False


@dataclass
class Written:
    """What came of a tensor in a file. Errors are relative to the source's values; None where nobody asked.

    rmse: root mean square error. max_error: the largest. seconds: of all threads together.
    """

    name: str
    rmse: float | None = None
    max_error: float | None = None
    seconds: float = 0.0


@dataclass
class Outcome:
    """What `write_files` did: for each file, its tensors in order; and how long it took."""

    files: list[list[Written]]
    seconds: float = 0.0
    compile_seconds: float = 0.0
    source_bytes: int = 0
    resumed_bytes: int = 0


class Sink(Protocol):
    """An open file: rows of any tensor may be written in any order, from any thread."""

    def covered(self, index: int, start: int, stop: int) -> Figures | None: ...

    def write(self, index: int, first_row: int, raw: NDArray[np.uint8], figures: Figures) -> None: ...


@dataclass(frozen=True)
class _OneSitting:
    """A file that is written from start to end."""

    file: OpenGguf

    def covered(self, index: int, start: int, stop: int) -> Figures | None:
        return None

    def write(self, index: int, first_row: int, raw: NDArray[np.uint8], figures: Figures) -> None:
        self.file.write(index, first_row, raw)


@dataclass(frozen=True)
class Task:
    """Rows `start` … `stop` of a tensor, for (file, index of the tensor in it, item)."""

    tensor: Tensor
    start: int
    stop: int
    wanted: tuple[tuple[int, int, Item], ...]

    @property
    def source_bytes(self) -> int:
        return (self.stop - self.start) * self.tensor.row_bytes


def default_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """How many threads there shall be; None: as many as processors. Raises OptionError."""
    if threads is not None and threads < 1:
        raise OptionError(f"{threads} threads cannot work; 1 or more are needed")
    return threads or default_threads()


def write_files(
    files: Sequence[FilePlan],
    *,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    statistics: bool = False,
    progress: Progress | None = None,
    executor: Executor | None = None,
    resumable: Resumable | None = None,
    overwrite: bool = False,
    reads: Reads = NOTHING,
) -> Outcome:
    """Write GGUF files from tensors, in one pass over the sources; all appear under their names when all are done.

    The same Tensor object in several files is read and decoded once.
    threads: default all cores. executor: what runs tasks instead, in this process. memory: bytes that running tasks may
    hold together. statistics: measure errors, which costs decoding what was encoded.
    progress(source bytes done, of how many, tensor or what is being compiled): called in this thread.
    resumable: leave half-done files behind. overwrite: replace files that exist, but for those of `reads`.
    Raises FileError or FormatError, naming tensor, row and column for NaN and infinities in a source.
    """
    started = time.perf_counter()
    threads = thread_count(threads)
    tasks = [
        task
        for tensor, wanted in _by_tensor(files)
        for task in _split(tensor, wanted, _block_rows(tensor, wanted, threads, memory, statistics))
    ]
    total = sum(task.source_bytes for task in tasks)
    outcome = Outcome([[Written(item.tensor.name) for item in file.items] for file in files], source_bytes=total)
    report = progress or _silent
    outcome.compile_seconds = compile_codecs(
        _codecs(files, statistics), threads, lambda name: report(0, total, f"compiling {name}")
    )
    log.info("kernels are there after %.3f s; %d blocks of rows for %d threads",
             outcome.compile_seconds, len(tasks), threads)  # fmt: skip
    with _open_sinks(files, resumable, overwrite, reads) as sinks:
        run = _Run(sinks, tasks, statistics, threads, report)
        figures = run.in_executor(executor) if executor else run.in_threads()
        reads.check_unchanged()
    for number, file in enumerate(files):
        for index, written in enumerate(outcome.files[number]):
            _sum_up(written, file.items[index], figures.get((number, index), []), statistics)
    outcome.resumed_bytes = run.resumed
    outcome.seconds = time.perf_counter() - started
    return outcome


def _silent(*_: Any) -> None:
    pass


@contextmanager
def _open_sinks(
    files: Sequence[FilePlan], resumable: Resumable | None, overwrite: bool, reads: Reads
) -> Iterator[Sequence[Sink]]:
    if resumable is None:
        with create_ggufs([(file.path, file.layout) for file in files], overwrite, reads) as outputs:
            yield [_OneSitting(output) for output in outputs]
        return
    sources, take_up = resumable.identity, resumable.take_up
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                resumable_gguf(file.path, file.layout, file.digest(), sources, take_up, overwrite, reads)
            )
            for file in files
        ]


def _by_tensor(files: Sequence[FilePlan]) -> list[tuple[Tensor, list[tuple[int, int, Item]]]]:
    """Each source tensor with every item made from it, in the order of the files."""
    found: dict[int, tuple[Tensor, list[tuple[int, int, Item]]]] = {}
    for number, file in enumerate(files):
        for index, item in enumerate(file.items):
            found.setdefault(id(item.tensor), (item.tensor, []))[1].append((number, index, item))
    return list(found.values())


def _block_rows(
    tensor: Tensor, wanted: Sequence[tuple[int, int, Item]], threads: int, memory: int, statistics: bool
) -> int:
    """Rows of a task: few enough for the cache and for the memory that one of `threads` tasks may hold."""
    encoded = max(item.format.row_bytes(tensor.width) for _, _, item in wanted)
    arrays = 4 if statistics else 2  # the values, what encoders keep beside them; what was decoded, the difference
    row_bytes = tensor.row_bytes + encoded + 4 * tensor.width * arrays
    return max(1, min(BLOCK_VALUES // max(1, tensor.width), memory // threads // max(1, row_bytes)))


def _split(tensor: Tensor, wanted: Sequence[tuple[int, int, Item]], rows: int) -> Iterator[Task]:
    for start in range(0, tensor.rows, rows):
        yield Task(tensor, start, min(start + rows, tensor.rows), tuple(wanted))


def _codecs(files: Sequence[FilePlan], statistics: bool) -> Iterator[Codec]:
    """What will encode and decode, so that nothing is compiled within a task."""
    for item in itertools.chain.from_iterable(file.items for file in files):
        if item.is_copy:
            continue
        yield Codec(item.format.name, "encode" if item.importance is None else "weighted")
        yield Codec(item.tensor.format.name, "decode")
        if statistics:
            yield Codec(item.format.name, "decode")
            yield Codec("F32", "deviation")


def _sum_up(written: Written, item: Item, figures: Iterable[tuple[int, Figures]], statistics: bool) -> None:
    ordered = [found for _, found in sorted(figures, key=lambda entry: entry[0])]  # for one sum whatever the order
    written.seconds = sum(f.seconds for f in ordered)
    if statistics:
        written.rmse = math.sqrt(sum(f.squares or 0.0 for f in ordered) / max(1, item.tensor.size))
        written.max_error = max((f.largest or 0.0 for f in ordered), default=0.0)


@dataclass
class _Run:
    """Tasks on their way through threads, never more than a few ahead."""

    sinks: Sequence[Sink]
    tasks: Sequence[Task]
    statistics: bool
    threads: int
    progress: Progress
    resumed: int = 0
    figures: dict[tuple[int, int], list[tuple[int, Figures]]] = field(default_factory=dict)

    def in_threads(self) -> dict[tuple[int, int], list[tuple[int, Figures]]]:
        with ThreadPoolExecutor(self.threads) as pool:
            return self.in_executor(pool)

    def in_executor(self, executor: Executor) -> dict[tuple[int, int], list[tuple[int, Figures]]]:
        total, done = sum(task.source_bytes for task in self.tasks), 0
        queue = iter(self.tasks)
        running: dict[Future[list[Figures]], Task] = {}
        try:
            while True:
                for task in itertools.islice(queue, 2 * self.threads - len(running)):
                    running[executor.submit(self.perform, task, self.known(task))] = task
                if not running:
                    return self.figures
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    for (number, index, _), figures in zip(task.wanted, future.result(), strict=True):
                        self.figures.setdefault((number, index), []).append((task.start, figures))
                    done += task.source_bytes
                    self.progress(done, total, task.tensor.name)
        finally:
            for future in running:
                future.cancel()
            wait(running)

    def known(self, task: Task) -> list[Figures | None]:
        """The figures of each item whose rows an earlier run wrote."""
        found = [self.sinks[number].covered(index, task.start, task.stop) for number, index, _ in task.wanted]
        if self.statistics:
            found = [None if figures is None or figures.squares is None else figures for figures in found]
        if found and None not in found:
            self.resumed += task.source_bytes
        return found

    def perform(self, task: Task, known: Sequence[Figures | None]) -> list[Figures]:
        """Read, encode and write a task's rows where they are not known. Returns the figures of each item."""
        values = _Rows(task.tensor, task.start, task.stop)
        return [
            figures or self.write(number, index, item, values)
            for (number, index, item), figures in zip(task.wanted, known, strict=True)
        ]

    def write(self, number: int, index: int, item: Item, values: _Rows) -> Figures:
        started = time.perf_counter()
        encoded = values.raw if item.is_copy else encode_rows(item, values.float32, values.start)
        if item.format.name == "F16" and not item.is_copy:
            _check_range(item, encoded, values.start)
        seconds = time.perf_counter() - started
        squares, largest = values.errors(item, encoded) if self.statistics else (None, None)
        figures = Figures(squares, largest, seconds)
        self.sinks[number].write(index, values.start, encoded, figures)
        return figures


class _Rows:
    """Rows of a tensor: read once, checked and decoded when first asked for.

    Without cached_property, which before Python 3.12 lets only one thread at a time compute any object's value.
    """

    def __init__(self, tensor: Tensor, start: int, stop: int) -> None:
        self.tensor = tensor
        self.start = start
        self.stop = stop
        self._raw: NDArray[np.uint8] | None = None
        self._float32: Floats | None = None

    @property
    def raw(self) -> NDArray[np.uint8]:
        if self._raw is None:
            self._raw = self._read()
        return self._raw

    @property
    def float32(self) -> Floats:
        if self._float32 is None:
            self._float32 = self._decode()
        return self._float32

    def _read(self) -> NDArray[np.uint8]:
        try:
            raw = self.tensor.raw(self.start, self.stop)
        except OSError as error:
            origin = self.tensor.origin or self.tensor.name
            raise FileError(f"{origin} cannot be read: {error.strerror or error}") from error
        check_finite(self.tensor, raw, self.start)
        return raw

    def _decode(self) -> Floats:
        form = self.tensor.format
        values = form.decode(np.ascontiguousarray(self.raw))
        if form.is_quantized:
            check_finite_values(self.tensor, values, self.start)
        return values

    def errors(self, item: Item, encoded: NDArray[np.uint8]) -> tuple[float, float]:
        """Sum of squared errors and largest error of what was encoded."""
        if item.is_copy:
            return 0.0, 0.0
        from quants.kernels.deviation import deviation

        return deviation(item.format.decode(encoded), self.float32)


def encode_rows(item: Item, values: Floats, first_row: int) -> NDArray[np.uint8]:
    """Encode rows `first_row` … of an item's tensor, each with the importance of its group."""
    if item.importance is None:
        return item.format.encode(values, None)
    if len(item.importance) == 1:
        return item.format.encode(values, item.importance[0])
    share = item.tensor.rows // len(item.importance)
    pieces, start = [], 0
    while start < len(values):
        group = (first_row + start) // share
        stop = min(len(values), (group + 1) * share - first_row)
        pieces.append(item.format.encode(values[start:stop], item.importance[group]))
        start = stop
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def check_finite(tensor: Tensor, raw: NDArray[np.uint8], first_row: int) -> None:
    """Raise FormatError for a NaN or infinity in stored rows, where values have bytes of their own."""
    if tensor.format.name not in EXPONENTS or not raw.size:
        return
    dtype, exponent = EXPONENTS[tensor.format.name]
    bits = np.ascontiguousarray(raw).view(dtype)
    mask = bits.dtype.type(exponent)
    # As integers, all that is not finite is largest: what is positive if the sign counts, else what is negative.
    negative = mask | bits.dtype.type(1 << 8 * bits.itemsize - 1)
    if bits.view(dtype.replace("u", "i")).max() >= exponent or bits.max() >= negative:
        row, column = (int(n) for n in np.argwhere((bits & mask) == mask)[0])
        is_infinity = bits[row, column] in (mask, negative)
        raise _not_finite(tensor, first_row + row, column, "infinity" if is_infinity else "NaN")


def check_finite_values(tensor: Tensor, values: Floats, first_row: int) -> None:
    """Raise FormatError for a NaN or infinity among decoded rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.add.reduce(values, axis=None)):  # no sum of finite numbers is NaN; a huge one is looked at
            return
    found = np.argwhere(~np.isfinite(values))
    if len(found):
        row, column = (int(n) for n in found[0])
        raise _not_finite(tensor, first_row + row, column, "NaN" if np.isnan(values[row, column]) else "infinity")


def _not_finite(tensor: Tensor, row: int, column: int, what: str) -> FormatError:
    return FormatError(
        f"tensor {tensor.name!r} has {what} in row {row}, column {column} ({tensor.origin or 'source'})",
        hint="the source is damaged: fetch it again",
    )


def _check_range(item: Item, encoded: NDArray[np.uint8], first_row: int) -> None:
    """Finite values that became infinite in F16 make a model that doesn't work."""
    bits = encoded.view("<u2")
    if bits.size and int((bits & np.uint16(0x7C00)).max()) == 0x7C00:
        row, column = (int(n) for n in np.argwhere((bits & 0x7C00) == 0x7C00)[0])
        where = f"row {first_row + row}, column {column}"
        raise FormatError(
            f"tensor {item.tensor.name!r} has a value in {where} that is beyond the range of F16",
            hint="choose BF16 or F32 for it",
        )


def scan(
    tensors: Iterable[Tensor],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Read and decode every value of every tensor. Raises FormatError for the first NaN or infinity."""
    threads = thread_count(threads)
    tasks = [
        Task(tensor, start, min(start + rows, tensor.rows), ())
        for tensor in tensors
        for rows in [max(1, BLOCK_VALUES // max(1, tensor.width))]
        for start in range(0, tensor.rows, rows)
    ]
    run = _Scan([], tasks, False, threads, progress or _silent)
    run.in_threads()


class _Scan(_Run):
    def perform(self, task: Task, known: Sequence[Figures | None]) -> list[Figures]:
        rows = _Rows(task.tensor, task.start, task.stop)
        _ = rows.float32 if task.tensor.format.is_quantized else rows.raw
        return []
