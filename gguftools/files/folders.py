"""Folders that appear whole or not at all, and whose files are replaced together."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from quants.errors import FileError

from .atomic import NOTHING, Reads, check_target, explain_write_error, opened_folder, sync_folder, temporary_name
from .naming import refuse_store
from .stores.path import located


@contextmanager
def new_folder(
    target: Path, overwrite: bool = False, reads: Reads = NOTHING, instead: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Path]:
    """A folder to write files to, which gets its name when the block ends, or is gone.

    overwrite: of one that has files, those of the same names are replaced when the block ends, the others stay. reads:
    what must not be replaced. instead: patterns of files that go, too, where a file of that name comes: whoever reads
    the folder would take them for its own. Raises FileError for what exists or cannot be written, OptionError for what
    is read.
    """
    target = located(target)
    refuse_store(target)
    if os.path.lexists(target) and not target.is_dir():
        raise FileError(f"{target} already exists, and is not a folder", hint="name another output")
    replaces = target.is_dir() and any(target.iterdir())
    if replaces and not overwrite:
        raise FileError(f"{target} already exists", hint="pass --overwrite to replace its files")
    for name in (instead or {}) if replaces else ():
        check_target(target / name, reads, overwrite=True)
    made = temporary_name(target / target.name if replaces else target)  # within: it may be a file system of its own
    try:
        made.mkdir()
        yield made
        if replaces:
            _replace(target, made, reads, instead or {})
        else:
            made.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            message = f"{target} already exists: another program wrote it meanwhile"
            raise FileError(message, hint="name another output") from error
        raise explain_write_error(error, target, 0) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)  # what has its name by now is not there


def _replace(target: Path, made: Path, reads: Reads, instead: Mapping[str, Sequence[str]]) -> None:
    """Give files their names in the target, one program at a time."""
    with opened_folder(target) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        names = sorted(path.name for path in made.iterdir())
        patterns = [pattern for name in names for pattern in instead.get(name, ())]
        old = {path for pattern in patterns for path in target.glob(pattern) if path.name not in names}
        for path in (*old, *(target / name for name in names)):
            check_target(path, reads, overwrite=True)
        for name in names:
            (made / name).replace(target / name)
        for path in old:  # last, so that whatever stops this loses nothing
            path.unlink(missing_ok=True)
        sync_folder(target)


@contextmanager
def made_folder(path: Path) -> Iterator[Path]:
    """A folder, made where there is none, and then removed again if the block raises and nothing is in it."""
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
    """Make a folder, whose own folder must exist; remove it again if nothing is in it when the block ends."""
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
