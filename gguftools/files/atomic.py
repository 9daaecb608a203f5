"""Output that appears whole under its name, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from quants.errors import FileError

PROC_FD = "/proc/self/fd/{}"


@dataclass
class Unnamed:
    """A file that is being written: open for reading and writing, without a name where the system can do that.

    path: its temporary name beside the target; None while it has none.
    """

    fd: int
    path: Path | None


def create_unnamed(target: Path, size: int = 0) -> Unnamed:
    """Open a new file in the folder of `target`, to be `publish`ed under that name or discarded.

    A file without a name (Linux) vanishes with the process however that ends; elsewhere it has a temporary name.
    size: bytes that will be written; FileError if the folder is missing, not writable, or hasn't that much room.
    """
    folder = target.parent
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder} to write {target.name} to", hint="create it first")
    if target.is_dir():
        raise FileError(f"{target} is a folder; the name of a file to write was expected")
    check_space(target, size)
    try:
        if hasattr(os, "O_TMPFILE") and Path(PROC_FD.format("")).is_dir():
            with suppress(OSError):  # file systems that can't: overlays, network mounts
                return Unnamed(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), None)
        path = _temporary_name(target)
        return Unnamed(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o666), path)
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error.strerror}") from error


def publish(file: Unnamed, target: Path, overwrite: bool = True) -> None:
    """Make the file durable and give it its name, in one step that other programs see whole. Closes nothing."""
    os.fsync(file.fd)
    if not overwrite and os.path.lexists(target):
        raise FileError(f"{target} already exists", hint="pass --overwrite to replace it")
    if file.path is None:
        file.path = _name_file(file.fd, _temporary_name(target))
    file.path.replace(target)
    file.path = None
    sync_folder(target.parent)


def discard(file: Unnamed) -> None:
    """Close the file, and remove the temporary name if it still has one."""
    os.close(file.fd)
    if file.path is not None:
        file.path.unlink(missing_ok=True)
        file.path = None


def _name_file(fd: int, path: Path) -> Path:
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # only with a folder given does Python make the call that looks through the link in /proc
        os.link(PROC_FD.format(fd), path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
    return path


def _temporary_name(target: Path) -> Path:
    # Names have 255 bytes at most; the target's may be that long.
    return target.with_name(f".{target.name[:32]}.{secrets.token_hex(6)}.partial")


def sync_folder(folder: Path) -> None:
    """Make names given and taken in the folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_space(target: Path, size: int) -> None:
    """Raise FileError if the file system of `target` has fewer than `size` bytes free."""
    try:
        info = os.statvfs(target.parent)
    except OSError:
        return
    free = info.f_bavail * info.f_frsize
    if size > free:
        raise FileError(
            f"{target} needs {size:,} bytes, {target.parent} has {free:,} free",
            hint="free some space, or write elsewhere",
        )


def explain_write_error(error: OSError, target: Path, size: int) -> FileError:
    """The FileError for a failed write to `target`, which needed `size` bytes in all."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        info = os.statvfs(target.parent)
        return FileError(
            f"no space left for {target}: it needs {size:,} bytes, {info.f_bavail * info.f_frsize:,} are free",
            hint="free some space, or write elsewhere",
        )
    return FileError(f"{target} cannot be written: {error.strerror or error}")


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """`os.pwrite` until all is written."""
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


@contextmanager
def atomic_output(path: Path, mode: str = "wb", overwrite: bool = True) -> Iterator[IO[Any]]:
    """Write a file that appears under `path` when the block ends, and not at all if it raises.

    mode: "wb", or "w" for UTF-8 text. Raises FileError as `create_unnamed` does, and where a write fails.
    """
    path = Path(path)
    unnamed = create_unnamed(path)
    try:
        raw = os.fdopen(unnamed.fd, "wb", closefd=False)
        with raw if "b" in mode else TextIOWrapper(raw, encoding="utf-8", newline="\n") as file:
            yield file
        publish(unnamed, path, overwrite)
    except OSError as error:
        raise explain_write_error(error, path, os.fstat(unnamed.fd).st_size) from error
    finally:
        discard(unnamed)
