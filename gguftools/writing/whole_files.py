"""Let each worker write files of a set as a whole: to stores, where several cannot write one object."""

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from archs.metadata import Metadata
from quants import format_named

from ..io.atomic import check_target
from ..io.gguf.shards import is_first_of_set
from ..io.gguf.uploads import make_way
from ..io.stores.path import StorePath
from .executors import leaves_process, run_on_executor
from .items import Floats, Item
from .options import WriteOptions
from .pipeline import FilePlan, Resumable, TensorStats, WriteResult, write_files
from .remote_tasks import Source, known_to_workers, tensors_of


class NamedItem(NamedTuple):
    """Describe an Item by the tensor's name.

    source: its name in the source; name, shape: in the file. format: None to copy.
    """

    source: str
    name: str
    shape: tuple[int, ...]
    format: str | None
    importance: Floats | None


class FileTask(NamedTuple):
    """Describe a file for a worker to write. source: the description of a `Source`."""

    source: bytes
    path: Path
    metadata: Metadata
    items: tuple[NamedItem, ...]
    alignment: int
    reserve: int
    magic: bytes
    write: WriteOptions
    resumable: Resumable | None


def are_written_elsewhere(files: Sequence[FilePlan], executor: Executor | None, source: Source | None) -> bool:
    """Return True if there are several files, all to a store, and workers can read all of their tensors."""
    return (
        len(files) > 1
        and leaves_process(executor)
        and source is not None
        and all(isinstance(file.path, StorePath) and file.path.scheme != "memory" for file in files)
        and all(_is_named(item, source) for file in files for item in file.items)
    )


def _is_named(item: Item, source: Source) -> bool:
    is_there = item.ready is None and source.name_of(item.tensor) is not None
    return is_there and (item.is_copy or known_to_workers(item.format))


def write_files_elsewhere(
    files: Sequence[FilePlan],
    executor: Executor,
    source: Source,
    write: WriteOptions,
    resumable: Resumable | None = None,
) -> WriteResult:
    """Write files as `write_files`, one per worker; the first shard follows when all others are there.

    An older set's first shard is removed before. write.memory: bytes that a worker may hold. Raises the same.
    """
    started = time.perf_counter()
    for file in files:
        if resumable is None or not resumable.resume:
            check_target(file.path, write.reads, write.overwrite)
    sources = resumable.fingerprint if resumable is not None and resumable.resume else None
    for file in files:
        if isinstance(file.path, StorePath) and is_first_of_set(file.path):
            make_way(file.path, file.layout.total, None if sources is None else [file.digest(), sources])
    sizes = [sum(item.tensor.nbytes for item in file.items) for file in files]
    tasks = [_task(file, source, write, resumable) for file in files]
    results: dict[int, list[TensorStats]] = {}
    number = {id(task): n for n, task in enumerate(tasks)}
    for some in (tasks[1:], tasks[:1]):
        for task, stats in run_on_executor(executor, write_whole, some):
            results[number[id(task)]] = stats
            if write.progress is not None:
                write.progress(sum(sizes[n] for n in results), sum(sizes), task.path.name)
    write.reads.check_unchanged()
    return WriteResult([results[n] for n in range(len(files))], time.perf_counter() - started, 0.0, sum(sizes))


def _task(file: FilePlan, source: Source, write: WriteOptions, resumable: Resumable | None) -> FileTask:
    items = tuple(
        NamedItem(
            source.name_of(item.tensor) or "",
            item.tensor.name,
            item.tensor.shape,
            None if item.is_copy else item.format.name,
            item.importance,
        )
        for item in file.items
    )
    options = WriteOptions(1, write.memory, statistics=write.statistics, overwrite=write.overwrite)
    more = (file.alignment, file.reserve, file.magic, options, resumable)
    return FileTask(source.description, file.path, file.metadata, items, *more)


def write_whole(task: FileTask) -> list[TensorStats]:
    """Write a file in this process, with one thread. Raises as `write_files`."""
    tensors = tensors_of(task.source)
    items = []
    for each in task.items:
        tensor = replace(tensors[each.source], name=each.name, shape=each.shape)
        items.append(Item(tensor, format_named(each.format) if each.format else tensor.format, each.importance))
    file = FilePlan(task.path, task.metadata, tuple(items), task.alignment, task.reserve, task.magic)
    return write_files([file], task.write, resumable=task.resumable).files[0]
