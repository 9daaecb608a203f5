"""Manage names in folders: temporary ones, free ones, and those that killed runs left."""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quants.errors import FileError

from .locks import is_unlocked

log = logging.getLogger(__name__)
NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
PARTIAL = ".partial"
HEX_BYTES = 6
NAME_CHARACTERS = 32  # of the target's name; a name has 255 bytes at most, and the target's may be that long


def temporary_name(target: Path, suffix: str = PARTIAL) -> Path:
    """Return a new name in the target's folder."""
    return target.with_name(f"{_beginning(target)}{secrets.token_hex(HEX_BYTES)}{suffix}")


def _beginning(target: Path) -> str:
    return f".{target.name[:NAME_CHARACTERS]}."


def take_name(path: Path, target: Path) -> None:
    """Rename a file to a free name. Raises FileExistsError if it is taken."""
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # the name is ours from here on
        path.replace(target)
    else:
        path.unlink()


def sync_folder(folder: Path) -> None:
    """Make changes of names in the folder durable."""
    with opened_folder(folder) as fd:
        os.fsync(fd)


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Open the folder; yields its descriptor."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def remove_leftovers(target: Path, kept: Container[str] = ()) -> None:
    """Remove the temporary files and folders that killed runs left of the target, and log each.

    kept: names that are not touched. What another run has locked stays; what cannot be locked is only reported.
    """
    pattern = re.compile(re.escape(_beginning(target)) + f"[0-9a-f]{{{2 * HEX_BYTES}}}" + re.escape(PARTIAL))
    with suppress(OSError):
        for name in names_in(target.parent):
            if pattern.fullmatch(name) and name not in kept:
                _remove_leftover(target.with_name(name))


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted. Raises OSError."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


def _remove_leftover(path: Path) -> None:
    """Remove a temporary file or folder, unless its writer has it locked."""
    with suppress(OSError):  # it is gone, or may not be opened
        info = path.lstat()
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            free = is_unlocked(fd)
            if free:
                remove_tree(path)
                log.warning("%s of an interrupted run was removed", path)
            elif free is None:
                log.warning("%s may be left of an interrupted run: delete it if none is writing", path)
        finally:
            os.close(fd)


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with its contents. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise FileError for a read-only file, by its mode even if the system would allow writing (root)."""
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if not mode & 0o222 or not os.access(path, os.W_OK):
            hint = f"`chmod u+w {path}` allows it; or name another output"
            raise FileError(f"{path} is read-only (mode {mode:04o}), so it is not changed", hint)


def keep_mode(fd: int, replaced: os.stat_result) -> None:
    """Give an open file the permissions of the one it replaces, and its owner if that is allowed."""
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (replaced.st_uid, replaced.st_gid):
        with suppress(OSError):
            os.fchown(fd, replaced.st_uid, replaced.st_gid)
    with suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(replaced.st_mode))
