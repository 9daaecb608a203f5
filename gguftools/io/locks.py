"""Lock files against other writers, and detect changed files.

A lock belongs to an open file, not to its name. After waiting for a lock, compare the two, and start again if the name
belongs to another file by now. Where a file system has no locks, there is no protection, and no error.

Locks are filelock's `lock_descriptor`: `flock` on Linux and macOS, `LockFileEx` on Windows. Its `FileLock` is not used:
it locks a separate file next to the data, which stays there, and it cannot lock what a killed run has left. It has no
shared locks, so `is_held` looks more than once: another process that looks has the lock for a moment. The rest of
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

WAIT = 2.0  # seconds to wait for another writer
STEP = 0.005
LOOKS = 5  # at a lock, which another reader may hold for a moment

State = FileState
NO_FILE: State = (0, 0, 0, 0)


def state_of(file: Path | int) -> State:
    """Return device, inode, size and time of change; NO_FILE if there is no such file.

    Of an object in a store, which is asked: its size, and a number for its version.
    """
    if isinstance(file, StorePath):
        from .stores.store import state_of_object, version_now

        current = version_now(file)
        return NO_FILE if current is None else state_of_object(*current)
    try:
        info = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return NO_FILE
    return file_state(info)


def is_named(fd: int, path: Path) -> bool:
    """Return True if `path` is a name of the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def lock(fd: int) -> bool:
    """Lock an open file; return False if another process has the lock. Closing the file unlocks it."""
    return is_unlocked(fd) is not False


def is_unlocked(fd: int) -> bool | None:
    """Lock an open file or folder.

    Return False if another process has the lock, None if the file system has no locks.
    """
    from filelock import lock_descriptor  # here, because commands that lock nothing need not wait for its import

    try:
        return lock_descriptor(fd, blocking=False)
    except OSError:
        return None


def wait_for_lock(fd: int) -> None:
    """Lock an open file or folder; wait as long as needed."""
    while not lock(fd):
        time.sleep(STEP)


@contextmanager
def held(path: Path) -> Iterator[int]:
    """Open and lock a regular file for the block.

    Raises FileError if another program has it locked for WAIT seconds.
    """
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
    """Open a regular file, for writing too if that is allowed. Raises FileError."""
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
    """Return True if another program has the file locked."""
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
