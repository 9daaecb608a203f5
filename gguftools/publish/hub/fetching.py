"""Fetch the files of a repository into a folder: only what is needed, each checked, and no file twice.

.gguftools-fetch.json in the folder has where the files come from, and what tells whether one was changed since.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archs.small_files import parse_json
from quants.arguments import PathLike, as_path, as_texts
from quants.errors import FileError, GgufToolsError, OptionError

from ...io.atomic import MORE_SPACE, atomic_output
from ...io.folders import free_for, made_folder
from ...io.naming import ADDRESS, few, refuse_store
from ...io.stores.hub import RemoteFile, Repository, connect
from ...io.stores.path import located
from ...writing.report import Report
from ...writing.resume import partial_path, stored_bytes
from .selection import LeftOut, choose
from .transfer import begun_bytes, fetch_file, local_digest

RECORD, RECORD_KEY = ".gguftools-fetch.json", "gguftools_fetch"
MAX_RECORD = 64 << 20  # bytes
SCHEME = re.compile(r"hf:/{1,2}")
NEW, EQUAL, CHANGED, DIFFERENT = "new", "equal", "changed at the hub", "different"
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class FetchedFile:
    """Describe a file that is fetched, or that is there.

    state: "new"; "equal" (nothing to do); "changed at the hub" since it was fetched; "different" from the hub's file.
    resumed_bytes: those that an interrupted run has left.
    """

    file: str
    size_bytes: int
    digest: str
    state: str
    resumed_bytes: int = 0


@dataclass(frozen=True)
class FetchReport(Report):
    """Report what was fetched, or would be.

    repository: ORG/MODEL. commit: the one that all files are of. free_bytes: on the folder's disk before.
    """

    also = ("to_fetch_bytes", "fetched")

    repository: str
    commit: str
    folder: Path
    files: tuple[FetchedFile, ...]
    left_out: tuple[LeftOut, ...]
    dry_run: bool
    free_bytes: int
    seconds: float = 0.0

    @property
    def fetched(self) -> tuple[str, ...]:
        """Return the files that this run has fetched; none of a plan."""
        return () if self.dry_run else tuple(each.file for each in self.files if each.state != EQUAL)

    @property
    def to_fetch_bytes(self) -> int:
        """Return the bytes of the files that were not there, less what an interrupted run had left of them."""
        return sum(each.size_bytes - each.resumed_bytes for each in self.files if each.state != EQUAL)


@dataclass
class _Counter:
    """Pass the bytes that came to the caller's progress."""

    progress: Progress | None
    total: int
    done: int = 0
    file: str = ""

    def advance(self, came: int) -> None:
        self.done += came
        if self.progress is not None:
            self.progress(self.done, self.total, self.file)


@dataclass
class _Record:
    """Hold what earlier runs noted of each file: [digest, size, time of change]."""

    files: dict[str, list[Any]] = field(default_factory=dict)

    def digest(self, path: str, target: Path) -> str | None:
        """Return the digest that a file had when it was checked; None if it was changed since."""
        noted = self.files.get(path)
        return str(noted[0]) if noted is not None and noted[1:] == _state(target) else None


def fetch(
    repository: PathLike,
    output: PathLike | None = None,
    *,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    overwrite: bool = False,
    recheck: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> FetchReport:
    """Fetch a repository's files into a folder, and check each by its size and its digest.

    repository: ORG/MODEL, ORG/MODEL@REVISION, or the same after hf://. output: the folder; by default ./MODEL. include:
    patterns of files to fetch instead of what convert reads of a checkpoint; exclude: patterns of files to leave out of
    that. overwrite: replace files that differ from the repository's. recheck: read files that earlier runs fetched
    again, even if their sizes and times of change say that they are as they were. dry_run: only plan.
    progress(bytes done, of how many, file). An interrupted run is continued by the next one.

    Raises FileError for a repository that cannot be read, a file that differs, a full disk and wrong contents; a
    GgufToolsError for wrong arguments.
    """
    include, exclude = patterns(include, "include"), patterns(exclude, "exclude")
    remote, began = connect(repository_name(repository)), time.monotonic()
    folder = Path(remote.model) if output is None else located(as_path(output, "the output"))
    refuse_store(folder)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file; a folder to fetch to was expected", "name another output")
    choice = choose(remote.name, remote.tree(), include, exclude, lambda file: _index_files(remote, file))
    record = _read_record(folder)
    files = _compare(choice.files, folder, record, recheck, progress)
    free = free_for(folder)
    report = FetchReport(remote.repo, remote.commit, folder, files, choice.left_out, dry_run, free)
    if dry_run:
        return report
    wrong = [f"{each.file} ({each.state})" for each in files if each.state in (CHANGED, DIFFERENT)]
    if wrong and not overwrite:
        raise FileError(f"{folder} has files that are not those of {remote.name}: {few(wrong)}", _hint_to_replace())
    _check_space(report, choice.files)
    _fetch(remote, choice.files, report, record, progress)
    seconds = time.monotonic() - began
    return FetchReport(remote.repo, remote.commit, folder, files, choice.left_out, dry_run, free, seconds)


def patterns(given: str | Iterable[str], what: str) -> list[str]:
    """Return patterns of files. Raises OptionError for what is none, naming `what`."""
    texts = as_texts(given, what)
    if not all(texts):
        raise OptionError(f"{what} has an empty pattern", "name files, such as '*.gguf'")
    return texts


def repository_name(given: PathLike) -> str:
    """Return hf://ORG/MODEL[@REVISION] for any spelling of it, also for its page's address. Raises OptionError."""
    as_path(given, "the repository")
    text = os.fspath(given)
    if (page := ADDRESS.fullmatch(text)) is not None:
        return f"hf://{page[1]}" + (f"@{page[2]}" if page[2] else "")
    return f"hf://{SCHEME.sub('', text, count=1)}"


def _hint_to_replace() -> str:
    return "pass `overwrite` to replace them, `exclude` to keep them, or name another output"


def _index_files(remote: Repository, file: RemoteFile) -> list[str]:
    """Return the names of the files that an index of weights lists. Raises FileError."""
    try:
        index = parse_json(remote.fetch(file.path, 0, file.size).tobytes())
    except ValueError as error:
        raise FileError(f"{remote.name}: {file.path} is not JSON") from error
    listed = index.get("weight_map") if isinstance(index, dict) else None
    return sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []


def _compare(
    files: Sequence[RemoteFile], folder: Path, record: _Record, recheck: bool, progress: Progress | None
) -> tuple[FetchedFile, ...]:
    """Return what is to be done with each file. Files of the same size are read unless a run has noted their digest."""
    known = {file.path: None if recheck else record.digest(file.path, folder / file.path) for file in files}
    read = [file for file in files if known[file.path] is None and _size(folder / file.path) == file.size]
    counter = _Counter(progress, sum(file.size for file in read))
    for file in read:
        counter.file = f"check {file.path}"
        known[file.path] = local_digest(file, folder / file.path, counter.advance)
    found = []
    for file in files:
        target, state = folder / file.path, DIFFERENT
        if not os.path.lexists(target):
            state = NEW
        elif known[file.path] == file.digest:
            state = EQUAL
            record.files[file.path] = [file.digest, *_state(target)]
        elif record.digest(file.path, target) not in (None, file.digest):
            state = CHANGED
        begun = 0 if state == EQUAL else begun_bytes(file, target)
        found.append(FetchedFile(file.path, file.size, file.digest, state, begun))
    return tuple(found)


def _fetch(
    remote: Repository, files: Sequence[RemoteFile], report: FetchReport, record: _Record, progress: Progress | None
) -> None:
    """Fetch what is not there, small files first, and write the record, also of an interrupted run."""
    wanted = {each.file for each in report.files if each.state != EQUAL}
    counter = _Counter(progress, sum(file.size for file in files if file.path in wanted))
    with made_folder(report.folder):
        try:
            for file in sorted(files, key=lambda file: file.size):
                if file.path not in wanted:
                    continue
                counter.file, target = file.path, report.folder / file.path
                with made_folder(target.parent) if target.parent != report.folder else nullcontext():
                    fetch_file(remote, file, target, True, counter.advance)
                record.files[file.path] = [file.digest, *_state(target)]
        except GgufToolsError as error:
            if isinstance(error.__cause__, OSError):
                raise _interrupted(error, counter) from error.__cause__
            raise
        finally:
            if record.files:
                _write_record(remote, report.folder, record)


def _interrupted(error: GgufToolsError, counter: _Counter) -> GgufToolsError:
    """Return a network's error with what is done, and how it goes on."""
    done = f"{counter.done:,} of {counter.total:,} bytes are there"
    return type(error)(f"{error}; {done}", "the same call goes on from there")


def _check_space(report: FetchReport, files: Sequence[RemoteFile]) -> None:
    """Raise FileError if the disk has not enough space for all files that are fetched."""
    there = sum(stored_bytes(partial_path(report.folder / file.path)) for file in files)
    wanted = sum(each.size_bytes for each in report.files if each.state != EQUAL)
    if wanted - there > report.free_bytes:
        what = f"{report.folder} needs {wanted - there:,} bytes, {report.free_bytes:,} are free"
        raise FileError(f"{report.repository}: {what}", f"{MORE_SPACE}, or fetch fewer files")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _state(path: Path) -> list[Any]:
    """Return size and time of change, which tell whether a file is as it was when it was checked."""
    try:
        info = path.stat()
    except OSError:
        return [-1, 0]
    return [info.st_size, info.st_mtime_ns]


def _read_record(folder: Path) -> _Record:
    """Return the record of earlier runs; an empty one where it is missing or damaged, so that files are read again."""
    try:
        if (folder / RECORD).stat().st_size > MAX_RECORD:
            return _Record()
        read = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = read["files"] if RECORD_KEY in read else {}
        return _Record({str(path): list(noted) for path, noted in files.items() if len(noted) == 3})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _Record()


def _write_record(remote: Repository, folder: Path, record: _Record) -> None:
    files = {path: noted for path, noted in sorted(record.files.items()) if noted[1:] == _state(folder / path)}
    content = {RECORD_KEY: 1, "repository": remote.repo, "commit": remote.commit, "files": files}
    text = json.dumps(content, indent=1) + "\n"
    path = folder / RECORD
    if path.is_file() and path.stat().st_size == len(text.encode()) and path.read_text(encoding="utf-8") == text:
        return
    with atomic_output(path, "w", overwrite=True) as file:
        file.write(text)
