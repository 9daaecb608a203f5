"""One writer a file: locks that hold though files are replaced, and what tells that a file was changed.

A lock belongs to an open file, not to its name. Who has waited for one compares the two, and starts again where the
name has gone to another file meanwhile. Where a file system has no locks, there is no protection, and no error.

Locks are filelock's `lock_descriptor`: `flock` on Linux and macOS, `LockFileEx` on Windows. Its `FileLock` is not used:
that locks a file of its own beside the data, which stays there, and it cannot lock what a killed run has left. It has
no shared locks, so that `is_held` looks more than once: another that looks has the lock for a moment. The rest of
writing needs POSIX: Windows cannot replace files while they are open.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from archs.small_files import FileState, file_state
from quants.errors import FileError

from .naming import hint_for_absent, hint_for_folder, refuse_store
from .stores.path import StorePath

WAIT = 2.0  # seconds that others get to finish
STEP = 0.005
LOOKS = 5  # at a lock that may be another's who looks

State = FileState
NO_FILE: State = (0, 0, 0, 0)


def state_of(file: Path | int) -> State:
    """Device, inode, bytes and time of change: others where a file was changed or replaced, zeros where none is.

    Of an object in a store, which is asked then: its bytes, and a number for its version.
    """
    if isinstance(file, StorePath):
        from .stores.store import state_of_object, version_now

        found = version_now(file)
        return NO_FILE if found is None else state_of_object(*found)
    try:
        info = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return NO_FILE
    return file_state(info)


def is_named(fd: int, path: Path) -> bool:
    """Whether `path` is a name of the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def lock(fd: int) -> bool:
    """Lock an open file against all others who would; False if one of them has it. Closing it unlocks it."""
    return is_unlocked(fd) is not False


def is_unlocked(fd: int) -> bool | None:
    """Lock an open file, or folder, if nobody has; None where the file system has no locks to tell by."""
    from filelock import lock_descriptor  # here, because commands that lock nothing need not wait for its import

    try:
        return lock_descriptor(fd, blocking=False)
    except OSError:
        return None


def wait_for_lock(fd: int) -> None:
    """Lock an open file or folder, however long another has it."""
    while not lock(fd):
        time.sleep(STEP)


@contextmanager
def held(path: Path) -> Iterator[int]:
    """Open a regular file that nobody else changes or replaces in the block. Raises FileError after WAIT seconds."""
    end = time.monotonic() + WAIT
    while True:
        fd = open_to_lock(path)
        try:
            if (is_locked := lock(fd)) and is_named(fd, path):
                yield fd
                return
        finally:
            os.close(fd)
        if not is_locked:
            if time.monotonic() > end:
                raise FileError(f"{path} is being changed by another program", hint="wait until it is done")
            time.sleep(STEP)


def open_to_lock(path: Path) -> int:
    """A regular file, opened for writing too where that is allowed. Raises FileError."""
    refuse_store(path)
    flags = os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not keep us waiting
    try:
        try:
            fd = os.open(path, os.O_RDWR | flags)  # some network mounts lock only what can be written
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            fd = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        hint = hint_for_folder(path) if path.is_dir() else hint_for_absent(path)
        raise FileError(f"{path} cannot be changed: {error.strerror}", hint) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileError(f"{path} is not a regular file")
    return fd


def is_held(path: Path) -> bool:
    """Whether another program has the file locked at this moment."""
    return all(_is_locked_now(path, STEP if look else 0) for look in range(LOOKS))


def _is_locked_now(path: Path, after: float) -> bool:
    time.sleep(after)
    free: bool | None = None
    for flags in (os.O_RDONLY, os.O_RDWR):  # NFS locks only what can be written
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            free = is_unlocked(fd)
        finally:
            os.close(fd)
        if free is not None:
            break
    return free is False
