"""Give several files their names together or not at all, with a journal for interrupted runs.

.NAME.HEX.replacing    one JSON object: for each file its name, the temporary name that it was written under, its
                       bytes and time of change, the name that the older file is moved to, and whether a resumed
                       run can use it

The journal is durable before the first name changes, and locked while its writer lives. Then older files are moved
aside, the first of the set first, so that no program can open an incomplete set. The new ones get their names, the
first last. At the end the older files and the journal are removed. Readers of a file that a journal names wait for a
living writer. They refuse what a killed one left, unless all files are old or all are new. The next run that writes one
of them undoes that first, or removes what is left of it; `recover` completes or undoes it.
"""

import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quants.errors import FileError

from .entries import PARTIAL, names_in, sync_folder, take_name, temporary_name
from .locks import STEP, WAIT, is_named, is_unlocked

log = logging.getLogger(__name__)
SUFFIX, MOVED = ".replacing", ".replaced"
KEY, VERSION = "gguftools-replacing", 1
MAX_BYTES = 1 << 24
PATIENCE = 10.0  # seconds that readers give a writer
PLAIN = re.compile(r"[^/\x00]+")


class Change(NamedTuple):
    """Describe a change of a name, which may include a folder.

    new: the temporary name of the file that gets it; None if the name only goes. moved: what the older file is called
    meanwhile; None if there is none. keep: leave the new file when the replacement is undone. stamp: bytes and time of
    change of the new file, which identify it under either name.
    """

    name: str
    new: str | None
    moved: str | None
    keep: bool = False
    stamp: tuple[int, int] | None = None


@dataclass(frozen=True)
class Replacement:
    """Hold a replacement in a folder, as its journal describes it."""

    journal: Path
    changes: tuple[Change, ...]
    writer: tuple[str, int, str]

    @property
    def folder(self) -> Path:
        return self.journal.parent

    def is_placed(self, change: Change) -> bool:
        """Return True if the new file has its name."""
        if change.new is None or _stamp(self.folder / change.name) != change.stamp:
            return False
        new = self.folder / change.new
        return not os.path.lexists(new) or new.samefile(self.folder / change.name)  # linked, not unlinked yet

    def is_moved(self, change: Change) -> bool:
        """Return True if the older file was moved aside."""
        return change.moved is not None and os.path.lexists(self.folder / change.moved)

    @property
    def is_done(self) -> bool:
        """Return True if only older files are left to be removed."""
        return all(self.is_placed(change) for change in self.changes if change.new is not None)

    @property
    def is_begun(self) -> bool:
        """Return True if any name changed."""
        return any(self.is_placed(change) or self.is_moved(change) for change in self.changes)

    @property
    def is_half_done(self) -> bool:
        """Return True if some files are old and others new, or if one is missing."""
        return self.is_begun and not self.is_done

    @property
    def is_of_checkpoint(self) -> bool:
        """Return True if it includes other files than GGUF files."""
        return any(not change.name.endswith(".gguf") for change in self.changes)

    def names(self, name: str) -> Change | None:
        """Return the change of a name, or None."""
        return next((change for change in self.changes if name == change.name), None)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns


def replace_together(target: Path, changes: Sequence[Change]) -> None:
    """Give files in the folder of `target` their names, all or none; the journal is named after `target`.

    The first file is the one without which no program opens the others. New files must be durable and complete. Raises
    OSError; FileExistsError for a name that was taken meanwhile; then nothing has changed.
    """
    with _journal(target, changes) as replacement:
        try:
            _move_aside(replacement)
            _place(replacement)
            _sync(replacement)
        except BaseException:
            with suppress(OSError, FileError):
                _undo(replacement)
            raise
        _finish(replacement)


@contextmanager
def _journal(target: Path, changes: Sequence[Change]) -> Iterator[Replacement]:
    """Write a durable journal; it is locked in the block."""
    made, folder = temporary_name(target), target.parent
    path = made.with_name(made.name.removesuffix(PARTIAL) + SUFFIX)
    stamped = tuple(each if each.new is None else each._replace(stamp=_stamp(folder / each.new)) for each in changes)
    replacement = Replacement(path, stamped, _this_process())
    content = {KEY: VERSION, "files": replacement.changes, "writer": replacement.writer}
    fd = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    try:
        is_unlocked(fd)
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(json.dumps(content).encode())
        os.fsync(fd)
        made.rename(path)
        sync_folder(folder)
        yield replacement
    finally:
        made.unlink(missing_ok=True)
        os.close(fd)


def _move_aside(replacement: Replacement) -> None:
    folder = replacement.folder
    for change in replacement.changes:
        if change.moved is not None and not replacement.is_moved(change) and not replacement.is_placed(change):
            with suppress(FileNotFoundError):
                (folder / change.name).rename(folder / change.moved)
    _sync(replacement)


def _sync(replacement: Replacement) -> None:
    """Make names durable in the folder and in the subfolders that hold files."""
    for below in {Path(change.name).parent for change in replacement.changes} | {Path()}:
        if (replacement.folder / below).is_dir():
            sync_folder(replacement.folder / below)


def _place(replacement: Replacement) -> None:
    folder = replacement.folder
    for change in reversed(replacement.changes):
        if change.new is None:
            continue
        if not replacement.is_placed(change):
            take_name(folder / change.new, folder / change.name)
        elif os.path.lexists(folder / change.new):
            (folder / change.new).unlink()


def _finish(replacement: Replacement) -> None:
    """Remove older files, and the journal."""
    folder = replacement.folder
    for change in replacement.changes:
        if change.moved is not None:
            (folder / change.moved).unlink(missing_ok=True)
    _end(replacement)


def _undo(replacement: Replacement) -> None:
    """Give older files their names again, and remove the new ones that no run can resume."""
    folder = replacement.folder
    for change in replacement.changes:
        if change.new is not None and replacement.is_placed(change):
            (folder / change.new).unlink(missing_ok=True)
            (folder / change.name).rename(folder / change.new)
    _sync(replacement)
    for change in reversed(replacement.changes):
        if change.moved is not None and replacement.is_moved(change):
            take_name(folder / change.moved, folder / change.name)
    for change in replacement.changes:
        if change.new is not None and not change.keep:
            (folder / change.new).unlink(missing_ok=True)
    _end(replacement)


def _end(replacement: Replacement) -> None:
    folder = replacement.folder
    _sync(replacement)  # the journal's changes are durable before it is removed
    texts = [text for change in replacement.changes for text in (change.name, change.new) if text]
    for below in sorted({parent for text in texts for parent in Path(text).parents[:-1]}, reverse=True):
        with suppress(OSError):  # it has files
            (folder / below).rmdir()
    replacement.journal.unlink(missing_ok=True)
    sync_folder(folder)


# Journals that others left, or are at work by


def replacements(folder: Path) -> list[Replacement]:
    """Return the replacements whose journals are in a folder."""
    try:
        names = [name for name in names_in(folder) if name.startswith(".") and name.endswith(SUFFIX)]
    except OSError:
        return []
    return [replacement for name in names if (replacement := _read(folder / name)) is not None]


def _read(path: Path) -> Replacement | None:
    """Return a journal's replacement; None if it is no journal of ours, or has gone."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_BYTES))
        if not isinstance(content, dict) or content.get(KEY) != VERSION:
            return None
        changes = tuple(_change(*each) for each in content["files"])
        host, process, started = content["writer"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    is_ours = bool(changes) and all(map(_is_ours, changes))
    return Replacement(path, changes, (str(host), int(process), str(started))) if is_ours else None


def _change(name: str, new: str | None, moved: str | None, keep: bool, stamp: list[int] | None) -> Change:
    """Read a change from a journal."""
    return Change(name, new, moved, keep, None if stamp is None else (int(stamp[0]), int(stamp[1])))


def _is_ours(change: Change) -> bool:
    """Return True if a change names only files in the folder, and temporary names as we give them."""
    texts = [text for text in (change.name, change.new, change.moved) if text is not None]
    if not all(isinstance(text, str) and _is_below(text) for text in texts):
        return False
    is_temporary = change.new is None or change.new.partition("/")[0].endswith(PARTIAL)
    return is_temporary and (change.moved is None or change.moved.endswith(MOVED))


def _is_below(name: str) -> bool:
    """Return True if a name stays in the folder or in folders below it."""
    return all(PLAIN.fullmatch(part) and part not in (".", "..") for part in name.split("/"))


def reserved_names(folder: Path) -> set[str]:
    """Return the temporary names in a folder that the recovery of a journal needs."""
    changes = [change for each in replacements(folder) for change in each.changes]
    names = {text for change in changes for text in (change.new, change.moved) if text}
    return names | {name.partition("/")[0] for name in names}


def pending(target: Path) -> Change | None:
    """Return the change of the target that a killed run left and `settle` will undo; None if there is none."""
    for each in replacements(target.parent):
        change = each.names(target.name)
        if change is not None and not each.is_done and not _is_alive(each):
            return change
    return None


def check_whole(folder: Path, concerns: Callable[[Replacement], bool]) -> None:
    """Raise FileError if a killed run left files half replaced; wait for a running one.

    concerns(replacement): True if it includes files that are read.
    """
    end = time.monotonic() + PATIENCE
    while half := [each for each in replacements(folder) if concerns(each) and each.is_half_done]:
        for each in half:
            if not _is_alive(each):
                raise _refusal(each)
        if time.monotonic() > end:
            raise FileError(f"files in {folder} are being replaced by another program", "wait until it is done")
        time.sleep(STEP)


def check_file_whole(path: Path) -> None:
    """Do the same for one file. Raises FileError."""
    check_whole(path.parent, lambda each: each.names(path.name) is not None)


def _refusal(each: Replacement) -> FileError:
    first = each.changes[0].name
    placed = sum(each.is_placed(change) for change in each.changes)
    count = sum(change.new is not None for change in each.changes)
    problem = (
        f"{each.folder / first} and {count - 1} more files were being written when the program was stopped: "
        f"{placed} of {count} have their names, {each.journal.name} lists all"
    )
    return FileError(problem, "run it again, or `gguftools set-metadata --recover` on one (--roll-back undoes it)")


def settle(target: Path) -> None:
    """Undo or complete what a killed run left of the target, before it is written. Raises FileError."""
    for each in replacements(target.parent):
        if each.names(target.name) is not None:
            settle_replacement(each)


def settle_replacement(each: Replacement) -> None:
    """Undo a replacement that a killed run left, or complete it if all new files have their names."""
    with _taken(each) as is_ours:
        if is_ours:
            done = _settled(each, roll_back=not each.is_done)
            log.warning("%s and the files with it: an interrupted replacement was %s", each.changes[0].name, done)


def recover(path: Path, roll_back: bool = False) -> str | None:
    """Complete or undo what a killed run left of a file, or of a folder's files; return what was done, or None.

    Raises FileError if names were taken since, or older files are gone.
    """
    folder = path if path.is_dir() else path.parent
    done = None
    for each in replacements(folder):
        if folder == path or each.names(path.name) is not None:
            with _taken(each) as is_ours:
                done = _settled(each, roll_back) if is_ours else done
    return done


def _settled(each: Replacement, roll_back: bool) -> str:
    folder = each.folder
    for change in each.changes:
        is_taken = os.path.lexists(folder / change.name) and each.is_moved(change) and not each.is_placed(change)
        if is_taken:
            problem = f"{folder / change.name} was written since the program that replaced it was stopped"
            raise FileError(problem, hint=f"move it away, or delete {each.journal.name} to keep it")
    placed = [change for change in each.changes if each.is_placed(change)]
    lost = [change.name for change in placed if change.moved and not each.is_moved(change)]
    if roll_back and lost:
        problem = f"the older {folder / lost[0]} is gone, so that this cannot be undone"
        raise FileError(problem, hint="`recover` completes it")
    try:
        if roll_back:
            _undo(each)
            return "rolled back"
        if not each.is_done:
            _move_aside(each)
            _place(each)
        _finish(each)
    except OSError as error:
        raise FileError(f"{each.journal} cannot be carried out: {error.strerror}: {error.filename}") from error
    return "completed"


@contextmanager
def _taken(each: Replacement) -> Iterator[bool]:
    """Lock a journal; yields False if another program ended it meanwhile. Raises FileError if one is working on it."""
    end = time.monotonic() + WAIT
    while True:
        try:
            fd = os.open(each.journal, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield False
            return
        except OSError as error:
            raise FileError(f"{each.journal} cannot be changed: {error.strerror}") from error
        try:
            free = is_unlocked(fd)
            if free or (free is None and not _is_running(each.writer)):
                yield is_named(fd, each.journal)
                return
        finally:
            os.close(fd)
        if time.monotonic() > end:
            problem = f"{each.folder / each.changes[0].name} is being replaced by another program"
            raise FileError(problem, hint="wait until it is done")
        time.sleep(STEP)


def _is_alive(each: Replacement) -> bool:
    """Return True if the writer of a journal, or a recovery, is running."""
    try:
        fd = os.open(each.journal, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # it has just ended: who asks looks again
    except OSError:
        return False
    try:
        free = is_unlocked(fd)
    finally:
        os.close(fd)
    return _is_running(each.writer) if free is None else not free


def _this_process() -> tuple[str, int, str]:
    """Return host, number and start time, which identify a process if the file system has no locks."""
    return socket.gethostname(), os.getpid(), _began(os.getpid())


def _began(process: int) -> str:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _is_running(writer: tuple[str, int, str]) -> bool:
    """Return True if a process is running; one of another host counts as running."""
    host, process, began = writer
    if host != socket.gethostname():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _began(process) == began
