"""Write files that an interrupted run leaves half done for the next one, with a journal of what is done."""

import json
import os
import stat
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quants.errors import FileError

from .atomic import PendingFile, discard, explained, name_new, open_pending, prepare, publish, remove_own, write_at
from .locks import held, is_named, lock, open_to_lock
from .naming import refuse_store


def claim(path: Path, head: Mapping[str, Any], key: str, target: Path) -> tuple[int, list[str]]:
    """Open the journal of an unfinished `target`, locked until it is closed.

    head: the first line of a new journal, a JSON object. key: a key that the first line of our journals has. Returns
    the descriptor and the journal's lines, none for a new one. Raises FileError if another run has it, or if it is not
    ours.
    """
    while True:
        if not os.path.lexists(path):
            new = PendingFile(*open_pending(path), path)
            try:
                write_at(new.fd, memoryview(json.dumps(head).encode() + b"\n"), 0)
                os.fsync(new.fd)
                name_new(new)
                return os.dup(new.fd), []
            except FileExistsError:
                continue
            finally:
                discard(new)
        fd = open_to_lock(path)
        locked = lock(fd)
        if locked and not is_named(fd, path):  # the file that had this name is complete: its lines are obsolete
            os.close(fd)
            continue
        try:
            if not locked:
                raise FileError(f"another run is writing {target}", hint="wait until it is done")
            lines = os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace").splitlines()
            if not _has_key(lines[0] if lines else "", key):
                raise FileError(f"{path} is in the way: no run of ours left it", hint="move it, or name another output")
        except BaseException:
            os.close(fd)
            raise
        return fd, lines


@dataclass
class Unfinished:
    """Hold an unfinished file and its journal; see `unfinished`.

    size: bytes it will have. log: descriptor of the journal, locked. lines: what the journal had; empty for a new one.
    replaced: descriptor of the existing target, locked, or None. fd: the file, -1 before `open`.
    """

    target: Path
    path: Path
    journal: Path
    size: int
    log: int
    lines: list[str]
    replaced: int | None
    fd: int = -1

    def open(self, *sizes: int) -> None:
        """Open the file that an earlier run left, which must have one of these sizes, or make it. Raises FileError."""
        try:
            with explained(self.target, self.size):
                self.fd = _open_own(self.path, bool(self.lines), sizes)
                end = os.lseek(self.log, 0, os.SEEK_END)
                if end and os.pread(self.log, 1, end - 1) != b"\n":
                    os.write(self.log, b"\n")  # ends a line that was cut off
        except BaseException:
            if not self.lines:
                self.abandon()
            raise

    def restart(self, head: Mapping[str, Any]) -> None:
        """Forget what is done."""
        os.ftruncate(self.fd, 0)  # first, so that no listed row is taken for written
        line = json.dumps(head).encode() + b"\n"
        write_at(self.log, memoryview(line), 0)
        os.ftruncate(self.log, len(line))
        os.lseek(self.log, 0, os.SEEK_END)

    def note(self, entry: Any) -> None:
        """Add a line to the journal."""
        os.write(self.log, json.dumps(entry).encode() + b"\n")

    def publish(self) -> None:
        """Give the file its final name. Raises FileError, OSError."""
        publish(PendingFile(self.fd, self.path, self.target, self.replaced, keep=True, done=(self.log, self.journal)))

    def abandon(self) -> None:
        """Remove the file and its journal."""
        remove_own(self.fd, self.path)
        self.end()

    def end(self) -> None:
        """Remove the journal."""
        remove_own(self.log, self.journal)


@contextmanager
def unfinished(
    target: Path, suffix: str, list_suffix: str, head: Mapping[str, Any], key: str, size: int, overwrite: bool
) -> Iterator[Unfinished]:
    """Begin, or resume, a file that has a name of its own until it is complete.

    suffix, list_suffix: of the file and of its journal, added to the target's name. head, key: see `claim`. size: bytes
    of the file. Raises FileError if another run writes it, or if the journal is not ours.
    """
    refuse_store(target)
    path, journal = target.with_name(target.name + suffix), target.with_name(target.name + list_suffix)
    prepare(target)
    with ExitStack() as stack:
        replaced = stack.enter_context(held(target)) if overwrite and target.exists() else None
        with explained(target, size):
            log, lines = claim(journal, head, key, target)
        stack.callback(os.close, log)
        file = Unfinished(target, path, journal, size, log, lines, replaced)
        try:
            yield file
        finally:
            if file.fd >= 0:
                os.close(file.fd)


def is_list(path: Path, key: str) -> bool:
    """Return True if a file is a journal that a run of ours left; see `claim`."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _has_key(file.readline(1 << 20), key)
    except OSError:
        return False


def _has_key(line: str, key: str) -> bool:
    try:
        head = json.loads(line)
    except ValueError:
        return False
    return isinstance(head, dict) and key in head


def _open_own(path: Path, is_ours: bool, sizes: Container[int]) -> int:
    if os.path.lexists(path):
        info = path.lstat()
        if not is_ours or not stat.S_ISREG(info.st_mode) or info.st_size not in sizes:
            raise FileError(f"{path} is in the way: no run of ours left it", hint="move it, or name another output")
        if info.st_nlink > 1:
            path.unlink()  # it has its final name already: the run was killed before this one was removed
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
