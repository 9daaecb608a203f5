"""Write files so that they appear complete under their names or not at all, and never replace an input.

An existing file is replaced only on request. It is locked when its output is opened, and a new one from its first byte
on: of two programs that would write one file, the second waits or is refused. A new file takes its name by a step that
fails if another program was faster.
"""

import errno
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError

from .entries import check_writable, keep_mode, opened_folder, remove_leftovers, sync_folder, take_name, temporary_name
from .locks import NO_FILE, State, held, is_named, lock, state_of
from .naming import refuse_store
from .replacing import MOVED, Change, pending, replace_together, reserved_names, settle
from .stores.path import StorePath, located

log = logging.getLogger(__name__)
MORE_SPACE = "free some space, or write elsewhere"
MANIFEST, MANIFEST_SCHEMA = ".manifest.json", "gguftools-manifest/"
PROC_FD = "/proc/self/fd/{}"


@dataclass(frozen=True)
class InputFiles:
    """List the files that a command reads, which it must not write.

    paths: files, and folders, all of whose files but GGUF files count. states: for files that are read until the end,
    what they were before they were first read. parameter: the one that names the output, for hints.
    """

    paths: tuple[Path, ...] = ()
    states: Mapping[Path, State] = field(default_factory=dict)
    parameter: str = "output"

    def also(self, paths: Iterable[PathLike | None]) -> "InputFiles":
        """Return these and more paths; None is ignored."""
        return replace(self, paths=(*self.paths, *(located(path) for path in paths if path is not None)))

    def union(self, other: "InputFiles") -> "InputFiles":
        """Return these and those of another model."""
        return replace(self, paths=(*self.paths, *other.paths), states={**self.states, **other.states})

    def check_target(self, target: Path) -> None:
        """Raise OptionError if `target` is one of the files, under any name."""
        every = (*self.paths, *self.states)
        if isinstance(target, StorePath):
            is_read = any(target == path or (isinstance(path, StorePath) and _is_of(target, path)) for path in every)
        else:
            try:
                info = target.stat()
            except OSError:
                return
            is_read = any(os.path.samestat(info, status) for path in every for status in _files_of(path))
        if is_read:
            hint = f"name another `{self.parameter}`"
            raise OptionError(f"{target} is read, so it cannot be written", hint)

    def check_unchanged(self) -> None:
        """Raise FileError if a file was changed or replaced since it was first read."""
        for path, state in self.states.items():
            if state_of(path) != state:
                raise FileError(f"{path} was changed while it was read", hint="run it again")


NOTHING = InputFiles()


def _is_of(target: StorePath, folder: StorePath) -> bool:
    """Return True if an object belongs to a checkpoint in a folder."""
    return target.is_below(folder) and target.suffix != ".gguf"


def _files_of(path: Path, depth: int = 2) -> Iterator[os.stat_result]:
    """Yield the status of the file, or of the files of a folder and of folders in it."""
    with suppress(OSError):
        info = path.stat()
        if not stat.S_ISDIR(info.st_mode):
            yield info
        elif depth:
            for each in path.iterdir():
                if each.suffix != ".gguf":  # outputs are often next to their source
                    yield from _files_of(each, depth - 1)


def output_path(output: PathLike, default_name: str | None = None) -> Path:
    """Return the path that an output names: the file itself, or `default_name` in the folder.

    An output that ends in a slash is a folder. Raises FileError if the folder does not exist, or if a file must be
    named; OptionError if it is no path.
    """
    as_path(output, "the output")
    path = located(output)
    if isinstance(path, StorePath):
        return _object_path(path, os.fspath(output).endswith("/"), default_name)
    if not os.fspath(output).endswith("/") and not path.is_dir():
        return path
    if default_name is None:
        raise FileError(f"{path} is a folder; the name of a file to write was expected")
    if not path.is_dir():
        raise FileError(f"there is no folder {path} to write {default_name} to", hint="create it first")
    return path / default_name


def _object_path(path: StorePath, is_folder: bool, default_name: str | None) -> StorePath:
    """Return the same for a URL. In a store every folder exists, and only the last slash tells a folder from a file."""
    if not path.is_writable:
        hint = "the hub's buckets have addresses of their own for s3://" if path.scheme == "hf" else None
        raise FileError(f"nothing is written to {path.scheme}:// addresses", hint or "name a file, or an s3:// URL")
    is_folder |= len(path.parts) <= 2 and path.scheme != "memory"
    if not is_folder and path.suffix != ".gguf" and (default_name or "").endswith(".gguf"):
        raise FileError(f"{path} does not end in .gguf", hint=f"{path}/ would be a folder, {path}.gguf a file")
    if not is_folder:
        return path
    if default_name is None:
        raise FileError(f"{path} is a folder; the name of a file to write was expected")
    return path / default_name


def check_target(target: Path, reads: InputFiles = NOTHING, overwrite: bool = False) -> None:
    """Raise OptionError if `target` is an input, FileError if it exists or is no place for a file."""
    if isinstance(target, StorePath):
        reads.check_target(target)
        if not target.is_writable:
            raise FileError(f"nothing is written to {target.scheme}:// addresses", hint="name another output")
        if not overwrite and state_of(target) != NO_FILE:
            raise FileError(f"{target} already exists", hint="pass `overwrite` to replace it")
        return
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {target.parent} to write {target.name} to", hint="create it first")
    if target.is_dir():
        raise FileError(f"{target} is a folder; the name of a file to write was expected")
    reads.check_target(target)
    left = pending(target)  # of an interrupted run, which is undone first
    is_there = os.path.lexists(target) if left is None else left.name == target.name and left.moved is not None
    if not is_there:
        return
    if not overwrite:
        raise FileError(f"{target} already exists", hint="pass `overwrite` to replace it")
    if left is not None:
        return
    if not target.is_file():
        what = "a link to nothing" if target.is_symlink() and not target.exists() else "not a regular file"
        raise FileError(f"{target} is {what}, so it is not replaced", hint="name another output, or remove it first")
    check_writable(target)


@dataclass
class PendingFile:
    """Hold a file that is being written: open for reading and writing; `path` is None if the system needs no name.

    replaced: descriptor of the existing target, locked, or None. reads: files that must be unchanged when it gets its
    name. keep: leave the file if naming it fails, for another run to resume. done: descriptor and path of its journal,
    which is removed when the file has its name.
    """

    fd: int
    path: Path | None
    target: Path
    replaced: int | None = None
    reads: InputFiles = NOTHING
    keep: bool = False
    done: tuple[int, Path] | None = None


@contextmanager
def new_file(
    target: Path, size: int = 0, *, reads: InputFiles = NOTHING, overwrite: bool = False, locked: int | None = None
) -> Iterator[PendingFile]:
    """Open a new file in the folder of `target`, which the block `publish`es under that name; else it is removed.

    A file without a name (Linux) vanishes with the process however that ends; elsewhere it has a temporary name. size:
    bytes that will be written. locked: descriptor of the target, if the caller has it open and locked. Raises as
    `check_target`; FileError if another program writes the target, or without enough free space.
    """
    refuse_store(target)
    check_target(target, reads, overwrite)
    prepare(target)
    check_space(target, size)
    with ExitStack() as stack:
        if locked is None and overwrite and target.exists():
            locked = stack.enter_context(held(target))
        try:
            file = PendingFile(*open_pending(target), target, locked, reads)
        except OSError as error:
            raise FileError(f"{target} cannot be written: {error.strerror}") from error
        stack.callback(discard, file)
        yield file


def prepare(target: Path) -> None:
    """Remove what killed runs left of a target that is about to be written. Raises FileError."""
    settle(target)
    remove_leftovers(target, reserved_names(target.parent))


def open_pending(target: Path) -> tuple[int, Path | None]:
    """Open a new, locked file in the target's folder; return its descriptor, and its temporary name if it needs one."""
    if hasattr(os, "O_TMPFILE") and Path(PROC_FD.format("")).is_dir():
        with suppress(OSError):  # file systems that can't: overlays, network mounts
            fd = os.open(target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
            lock(fd)
            return fd, None
    while True:
        path = temporary_name(target)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o666)
        lock(fd)
        if is_named(fd, path):  # else another run removed it as a leftover
            return fd, path
        os.close(fd)


def publish(*files: PendingFile) -> None:
    """Make files durable and give them their names, all or none, the first last.

    Inside `published_together`, this is done when that block ends. Raises FileError if another program was faster.
    """
    group = _GROUP.get()
    if group is None:
        _publish(files)
    else:
        group.add(files)


def _publish(files: Sequence[PendingFile]) -> None:
    for file in files:
        if file.replaced is not None:
            keep_mode(file.fd, os.fstat(file.replaced))
        os.fsync(file.fd)
    for file in files:
        file.reads.check_unchanged()
        _check_free(file)
    if len(files) == 1:
        _give_name(files[0])
    for folder in dict.fromkeys(file.target.parent for file in files) if len(files) > 1 else ():
        _give_names([file for file in files if file.target.parent == folder])
    for folder in {file.target.parent for file in files}:
        sync_folder(folder)
    for file in files:
        if file.done is not None:
            remove_own(*file.done)
        log.info("wrote %s: %d bytes", file.target, os.fstat(file.fd).st_size)


def _check_free(file: PendingFile) -> None:
    """Raise FileError if another program wrote the target meanwhile."""
    if file.replaced is None and os.path.lexists(file.target):
        raise _taken(file.target)
    if file.replaced is not None and not is_named(file.replaced, file.target):
        raise FileError(f"{file.target} was replaced by another program meanwhile", hint="run it again")


def _taken(target: Path) -> FileError:
    hint = "another program wrote it meanwhile; pass `overwrite` to replace it"
    return FileError(f"{target} already exists", hint=hint)


def _give_name(file: PendingFile) -> None:
    if file.replaced is None:
        try:
            name_new(file)
        except FileExistsError as error:
            raise _taken(file.target) from error
        return
    if file.path is None:
        file.path = temporary_name(file.target)
        _link_open(file.fd, file.path)
    if manifest := _own_manifest(file.target):
        manifest.unlink()
    file.path.replace(file.target)
    file.path = None


def _give_names(files: Sequence[PendingFile]) -> None:
    """Name several files of a folder, all or none."""
    changes = []
    for file in files:
        if file.path is None:
            file.path = temporary_name(file.target)
            _link_open(file.fd, file.path)
        moved = None if file.replaced is None else temporary_name(file.target, MOVED).name
        changes.append(Change(file.target.name, file.path.name, moved, file.keep))
    manifests = [path for file in files if file.replaced is not None and (path := _own_manifest(file.target))]
    changes += [Change(path.name, None, temporary_name(path, MOVED).name) for path in manifests]
    try:
        replace_together(files[0].target, changes)
    except FileExistsError as error:
        raise _taken(Path(error.filename2 or error.filename)) from error
    for file in files:
        file.path = None


def _own_manifest(target: Path) -> Path | None:
    """Return the manifest of a file that is about to be replaced, if it is ours; it would describe the old file."""
    path = target.with_name(target.name + MANIFEST)
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        if MANIFEST_SCHEMA in file.read(1 << 8):  # ours
            return path
    return None


@dataclass
class _Group:
    """Collect files that get their names together. then: functions called after that."""

    files: list[PendingFile] = field(default_factory=list)
    then: list[Callable[[], None]] = field(default_factory=list)

    def add(self, files: Sequence[PendingFile]) -> None:
        """Take over files from writers that close their own descriptors."""
        for file in files:
            replaced = None if file.replaced is None else os.dup(file.replaced)
            done = None if file.done is None else (os.dup(file.done[0]), file.done[1])
            self.files.append(replace(file, fd=os.dup(file.fd), replaced=replaced, done=done))
            file.path = None

    def publish(self) -> None:
        """Name the files, of a set its first shard last, and call the waiting functions."""
        self.files.sort(key=lambda file: file.target)  # they were added as they were completed
        if self.files:
            with explained(self.files[0].target, sum(os.fstat(file.fd).st_size for file in self.files)):
                _publish(self.files)
        for then in self.then:
            then()

    def close(self) -> None:
        """Close the files, and remove those without names unless another run can resume them."""
        for file in self.files:
            file.path = None if file.keep else file.path
            discard(file)
            for fd in (file.replaced, file.done and file.done[0]):
                if fd is not None:
                    os.close(fd)


_GROUP: ContextVar[_Group | None] = ContextVar("published_together", default=None)


@contextmanager
def published_together() -> Iterator[None]:
    """Give all files that are written in the block their names when it ends, or none.

    An inner block is part of the outer one. Raises as `publish`.
    """
    if _GROUP.get() is not None:
        yield
        return
    group = _Group()
    token = _GROUP.set(group)
    try:
        try:
            yield
        finally:
            _GROUP.reset(token)
        group.publish()
    finally:
        group.close()


def when_published(then: Callable[[], None]) -> None:
    """Call a function when the written files have their names: now, or when `published_together` ends."""
    group = _GROUP.get()
    if group is None:
        then()
    else:
        group.then.append(then)


def name_new(file: PendingFile) -> None:
    """Give the file its name. Raises FileExistsError if it is taken."""
    if file.path is None:
        _link_open(file.fd, file.target)
        return
    take_name(file.path, file.target)
    file.path = None


def discard(file: PendingFile) -> None:
    """Close the file, and remove its temporary name if it has one."""
    if file.path is not None:
        file.path.unlink(missing_ok=True)
        file.path = None
    os.close(file.fd)


def remove_own(fd: int, path: Path) -> None:
    """Remove a name if it belongs to the open file."""
    if is_named(fd, path):
        path.unlink(missing_ok=True)


def _link_open(fd: int, path: Path) -> None:
    with opened_folder(path.parent) as folder:  # only with dst_dir_fd does Python follow the link in /proc
        os.link(PROC_FD.format(fd), path.name, dst_dir_fd=folder, follow_symlinks=True)


def check_space(target: Path, size: int) -> None:
    """Raise FileError if the file system of `target` has fewer than `size` bytes free."""
    try:
        free = free_bytes(target)
    except OSError:
        return
    if size > free:
        raise FileError(f"{target} needs {size:,} bytes, {target.parent} has {free:,} free", MORE_SPACE)


def free_bytes(target: Path) -> int:
    """Return the bytes free on the file system of `target`, which need not exist; stores are unlimited.

    Raises OSError.
    """
    if isinstance(target, StorePath):
        return sys.maxsize
    info = os.statvfs(target.parent)
    return info.f_bavail * info.f_frsize


def explain_write_error(error: OSError, target: Path, size: int) -> FileError:
    """Return the FileError for a failed write to `target`, which needed `size` bytes in all."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(target)
        return FileError(f"no space left for {target}: it needs {size:,} bytes, {free:,} are free", MORE_SPACE)
    return FileError(f"{target} cannot be written: {error.strerror or error}")


@contextmanager
def explained(target: Path, size: int) -> Iterator[None]:
    """Turn an OSError of the block into the FileError of `explain_write_error`."""
    try:
        yield
    except OSError as error:
        raise explain_write_error(error, target, size) from error


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Call `os.pwrite` until all bytes are written."""
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


@contextmanager
def atomic_output(
    path: Path, mode: str = "wb", overwrite: bool = False, reads: InputFiles = NOTHING
) -> Iterator[IO[Any]]:
    """Write a file that appears as `path` when the block ends, and not at all if it raises.

    mode: "w" for UTF-8 text.
    """
    with new_file(path, reads=reads, overwrite=overwrite) as unnamed:
        try:
            raw = os.fdopen(unnamed.fd, "wb", closefd=False)
            with raw if "b" in mode else TextIOWrapper(raw, encoding="utf-8", newline="\n") as file:
                yield file
            publish(unnamed)
        except OSError as error:
            raise explain_write_error(error, path, os.fstat(unnamed.fd).st_size) from error
