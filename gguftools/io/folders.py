"""Write folders that appear complete or not at all, and replace their files together."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from quants.errors import FileError

from .atomic import NOTHING, InputFiles, check_target, explain_write_error, free_bytes
from .entries import keep_mode, opened_folder, remove_leftovers, sync_folder, temporary_name
from .locks import is_named, is_unlocked, wait_for_lock
from .naming import refuse_store
from .replacing import MOVED, Change, replace_together, replacements, reserved_names, settle_replacement
from .stores.path import located


@contextmanager
def new_folder(
    target: Path,
    overwrite: bool = False,
    reads: InputFiles = NOTHING,
    instead: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Path]:
    """Yield a folder to write files to; it gets its name when the block ends, and is removed if the block raises.

    overwrite: in an existing folder, replace files of the same names when the block ends; other files stay. reads: what
    must not be replaced. instead: file name → patterns of files that are removed when it is written, because readers of
    the folder would use them instead. Raises FileError for what exists or cannot be written, OptionError for what is
    read.
    """
    target = located(target)
    refuse_store(target)
    if os.path.lexists(target) and not target.is_dir():
        raise FileError(f"{target} already exists, and is not a folder", hint="name another output")
    prepare_folder(target)
    replaces = target.is_dir() and any(target.iterdir())
    if replaces and not overwrite:
        raise FileError(f"{target} already exists", hint="pass `overwrite` to replace its files")
    for path in _instead(target, instead or {}, instead or {}) if replaces else ():
        check_target(path, reads, overwrite=True)
    within = target / target.name if replaces else target  # the folder may be a mount point
    with ExitStack() as stack:
        stack.enter_context(_explained(target))
        made = stack.enter_context(_locked_folder(within))
        yield made
        if replaces:
            _replace(target, made, reads, instead or {})
        else:
            made.rename(target)
            sync_folder(target.parent)


@contextmanager
def files_of_folder(target: Path, overwrite: bool = False, reads: InputFiles = NOTHING) -> Iterator[Path]:
    """Yield a folder for files that get their names in the existing folder `target` when the block ends, all or none.

    overwrite: also replace existing files. reads: what must not be replaced. Raises FileError, OptionError.
    """
    prepare_folder(target)
    with _explained(target), _locked_folder(target / target.name) as made:
        yield made
        _replace(target, made, reads, {}, overwrite)


def free_for(folder: Path) -> int:
    """Return the bytes that are free for a folder, which need not exist."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    return free_bytes(there / "file")


def prepare_folder(target: Path) -> None:
    """Remove what killed runs left of a folder that is about to be written. Raises FileError."""
    remove_leftovers(target, reserved_names(target.parent))
    if target.is_dir():
        for each in replacements(target):
            if each.is_of_checkpoint:
                settle_replacement(each)
        remove_leftovers(target / target.name, reserved_names(target))


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            message = f"{target} already exists: another program wrote it meanwhile"
            raise FileError(message, hint="name another output") from error
        raise explain_write_error(error, target, 0) from error


@contextmanager
def _locked_folder(target: Path) -> Iterator[Path]:
    """Make a folder with a temporary name, and lock it so that no other run removes it; remove it at the end."""
    while True:
        made = temporary_name(target)
        made.mkdir()
        try:
            fd = os.open(made, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        is_unlocked(fd)
        if is_named(fd, made):
            break
        os.close(fd)
    try:
        yield made
    finally:
        if made.name not in reserved_names(made.parent):  # else recovery needs its files
            shutil.rmtree(made, ignore_errors=True)  # files with their names are not there any more
        os.close(fd)


def _instead(target: Path, names: Iterable[str], instead: Mapping[str, Sequence[str]]) -> list[Path]:
    """Return the files of the folder that are replaced or removed when files of these names are written."""
    names = set(names)
    patterns = [pattern for name in sorted(names) for pattern in instead.get(name, ())]
    others = {path for pattern in patterns for path in target.glob(pattern)}
    return sorted(others | {target / name for name in names})


def _replace(
    target: Path, made: Path, reads: InputFiles, instead: Mapping[str, Sequence[str]], overwrite: bool = True
) -> None:
    """Give files their names in the target, all or none, one program at a time. Raises OSError, FileError."""
    with opened_folder(target) as fd:
        wait_for_lock(fd)
        new = {path.relative_to(made).as_posix() for path in made.rglob("*") if not path.is_dir()}
        paths = _instead(target, new, instead)
        for path in paths:
            check_target(path, reads, overwrite)
        changes = []
        for path in sorted(paths, key=lambda path: _place(path.name)):
            is_there, name = os.path.lexists(path), path.relative_to(target).as_posix()
            if name in new and is_there:
                with opened_folder(made / name) as file:
                    keep_mode(file, path.stat())
            if name in new or is_there:
                moved = temporary_name(path, MOVED).relative_to(target).as_posix() if is_there else None
                changes.append(Change(name, f"{made.name}/{name}" if name in new else None, moved))
            if name in new:
                path.parent.mkdir(exist_ok=True)
                sync_folder((made / name).parent)
        if changes:
            replace_together(target / target.name, changes)


def _place(name: str) -> tuple[int, str]:
    """Sort files of a set: first the one without which no program opens the others."""
    return (0 if name == "config.json" else 1 if name.endswith(".index.json") else 2), name


@contextmanager
def made_folder(path: Path) -> Iterator[Path]:
    """Make a folder if there is none; remove it again if the block raises and the folder is empty."""
    path = located(path)
    refuse_store(path)
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{path} cannot be made: {error.strerror}") from error
    try:
        yield path
    except BaseException:
        if made:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def named_folder(path: Path) -> Iterator[None]:
    """Make a folder, whose parent must exist; remove it if it is empty when the block ends."""
    try:
        path.mkdir()
    except OSError as error:
        problem = f"the folder {path} cannot be made: {error.strerror}"
        raise FileError(problem, hint="name one whose own folder exists") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.rmdir()
