"""Send files to a repository in batches, each a commit, so that an interrupted upload is continued by the next one.

huggingface_hub sends large files before the commit that names them: by Xet, which stores chunks it has not seen yet,
where hf_xet is installed and not switched off; else by LFS, in parts. What was sent is not sent again, even if its
commit is missing.
"""

import hashlib
import io
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, constants
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from quants.errors import FileError

from .checks import CARD, LocalFile
from .client import Account, PassingError, Target, contents_of, explained

BATCH_FILES, BATCH_BYTES = 50, 50 << 30  # of a commit: more than 100 files may take the hub too long
SMALL = 8 << 20  # bytes; a smaller file is read at once
STREAMS = 4  # files that are sent at the same time, without Xet
TRIES, FIRST_WAIT, LONGEST_WAIT = 6, 1.0, 60.0
BETWEEN = 0.1  # seconds between two reports
REPORTERS = ("XetUploadProgressReporter", "XetProgressReporter")  # of huggingface_hub since 2, and before

Progress = Callable[[int, int, str], None]


class _Stopped(Exception):  # noqa: N818  # no error: the work is given up
    """Report that the upload was interrupted."""


@dataclass
class Sent:
    """Count the bytes that were sent, for progress.

    committed: bytes of the batches that are. batch: bytes of the present one. done: what LFS has sent of it, by file;
    through_xet: what Xet has. stop: the upload was interrupted.
    """

    total: int
    committed: int = 0
    batch: int = 0
    done: dict[str, int] = field(default_factory=dict)
    through_xet: int = 0
    file: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def bytes(self) -> int:
        return self.committed + min(self.batch, sum(self.done.values()) + self.through_xet)

    def begin(self, batch: int) -> None:
        """Begin a batch of so many bytes, or begin it once more."""
        self.batch, self.through_xet = batch, 0
        self.done.clear()

    def end(self, batch: int) -> None:
        """Count a batch as committed."""
        self.begin(0)
        self.committed += batch


class _Counted(io.BufferedReader):
    """Read a file and count how far that has come."""

    def __init__(self, file: LocalFile, sent: Sent) -> None:
        super().__init__(io.FileIO(file.local))
        self._file, self._sent = file, sent

    def read(self, size: int | None = -1, /) -> bytes:
        if self._sent.stop.is_set():
            raise _Stopped
        data = super().read(size)
        self._sent.file = self._file.path
        self._sent.done[self._file.path] = min(self.tell(), self._file.size)
        return data


class _XetReporter:
    """Take the place of huggingface_hub's bars for Xet, and count instead."""

    sent: Sent

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what a bar takes."""

    def update_progress(self, total: Any, items: Any) -> None:
        """Count the bytes that were read and, unless the hub had them, sent."""
        done = getattr(total, "total_bytes_completed", None)
        if isinstance(done, int):
            self.sent.through_xet = done
        for item in items.values() if isinstance(items, dict) else items:
            self.sent.file = Path(str(getattr(item, "item_name", ""))).name

    def close(self, *_: Any) -> None:
        """Do nothing: there is no bar to close."""


@dataclass
class Delivery:
    """Send batches of files. message: of commits. committed: files that are in the repository by now."""

    target: Target
    account: Account
    message: str
    create_pr: bool
    progress: Progress | None
    sent: Sent
    committed: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    pull_request: str | None = None
    _may_be_open: bool = False  # a commit that opens a pull request was asked for: another may open a second one

    def send(self, files: Sequence[LocalFile], delete: Sequence[str]) -> None:
        """Send the files, the model card and deletions last. Raises FileError."""
        for batch, gone in batches(files, delete):
            self._send_batch(batch, gone)
            self._report()

    def _send_batch(self, batch: Sequence[LocalFile], delete: Sequence[str]) -> None:
        """Send a batch, and try again after errors that may pass."""
        left, failures = list(batch), 0
        while True:
            try:
                self._try(left, delete)
                break
            except PassingError as error:
                if self._may_be_open:
                    hint = f"see whether it was opened: {self.target.endpoint}/{self.target.repo}/discussions"
                    raise FileError(f"{error}; it was to open a pull request", hint) from error.__cause__
                failures += 1
                if failures >= TRIES:
                    raise FileError(f"{error}; {self._state()}", self._way_on()) from error.__cause__
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (failures - 1))
            self._pause(wait)
            with suppress(PassingError):
                left, delete = self._missing(left, delete)
                if not left and not delete:  # the commit was made, only its answer was lost
                    break
        self.committed += [file.path for file in batch]
        self.sent.end(sum(file.size for file in batch))

    def _try(self, batch: Sequence[LocalFile], delete: Sequence[str]) -> None:
        self.sent.begin(sum(file.size for file in batch))
        with ExitStack() as opened:
            operations = [self._addition(file, opened) for file in batch]
            self._preupload(operations)
            for file in batch:
                file.check_unchanged()
            self._commit([*operations, *(CommitOperationDelete(path_in_repo=path) for path in delete)], len(batch))

    def _addition(self, file: LocalFile, opened: ExitStack) -> Any:
        """Return huggingface_hub's object for a file."""
        file.check_unchanged()
        if file.size <= SMALL:
            data = file.local.read_bytes()
            if hashlib.sha256(data).hexdigest() != file.sha256:
                raise FileError(f"{file.local} was changed while it was uploaded", "run it again")
            return CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=data)
        addition = CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=str(file.local))
        addition.upload_info.sha256 = bytes.fromhex(file.sha256)  # so that it is not computed once more
        if not uses_xet():
            addition.path_or_fileobj = opened.enter_context(_Counted(file, self.sent))
        return addition

    def _preupload(self, operations: Sequence[Any]) -> None:
        """Send what is large, in another thread: an interruption need not wait for it."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with explained(self.target, "send files", self.account), own_progress(self.sent):
                    self.target.api.preupload_lfs_files(
                        self.target.repo,
                        operations,
                        repo_type="model",
                        revision=self.target.revision,
                        create_pr=self.create_pr,
                        num_threads=STREAMS,
                        free_memory=False,
                    )
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(BETWEEN)
                self._report()
        except BaseException:
            self.sent.stop.set()
            raise
        if errors:
            raise errors[0]

    def _commit(self, operations: Sequence[Any], count: int) -> None:
        self._may_be_open = self.create_pr
        with explained(self.target, "make a commit", self.account), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made = self.target.api.create_commit(
                self.target.repo,
                operations,
                commit_message=self.message or _message(operations, count),
                repo_type="model",
                revision=self.target.revision,
                create_pr=self.create_pr,
            )
        self.commits.append(made.oid)
        of_the_card = [each for each in said if issubclass(each.category, UserWarning)]
        self.warnings += [" ".join(str(each.message).split()) for each in of_the_card]
        if self.create_pr and made.pr_revision:
            self.pull_request, self.create_pr, self._may_be_open = made.pr_url, False, False  # for other batches
            self.target = Target(self.target.api, self.target.repo, made.pr_revision)

    def _missing(self, batch: Sequence[LocalFile], delete: Sequence[str]) -> tuple[list[LocalFile], list[str]]:
        """Return what a commit, of which no answer came, has not done."""
        if self.create_pr:  # nothing is in the repository itself
            return list(batch), list(delete)
        there = contents_of(self.target).files
        left = [file for file in batch if not is_same(file, there.get(file.path))]
        return left, [path for path in delete if path in there]

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, BETWEEN))
            self._report()

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.sent.bytes, self.sent.total, self.sent.file)

    def _state(self) -> str:
        return f"{len(self.committed)} files are in the repository by now" if self.committed else "nothing is committed"

    def _way_on(self) -> str:
        if self.pull_request is not None:
            return f'the same call with revision="{self.target.revision}" in place of `create_pr` goes on from there'
        return "check the connection; the same call goes on from there, and what was sent is not sent again"


def batches(files: Sequence[LocalFile], delete: Sequence[str]) -> Iterator[tuple[list[LocalFile], list[str]]]:
    """Yield the files of each commit with what it deletes: the model card and deletions come last."""
    batch: list[LocalFile] = []
    for file in files:
        if file.path == CARD:
            continue
        if batch and (len(batch) == BATCH_FILES or sum(each.size for each in batch) + file.size > BATCH_BYTES):
            yield batch, []
            batch = []
        batch.append(file)
    if batch:
        yield batch, []
    card = [file for file in files if file.path == CARD]
    if card or delete:
        yield card, list(delete)


def is_same(file: LocalFile, remote: Any) -> bool:
    """Return True if the repository's file has the same content."""
    if remote is None or remote.size != file.size:
        return False
    if remote.sha256 is not None:
        return bool(remote.sha256 == file.sha256)
    return bool(remote.oid == git_id(file))


def git_id(file: LocalFile) -> str:
    """Return git's id of a file's content. Raises FileError."""
    hasher = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    try:
        with file.local.open("rb") as opened:
            while data := opened.read(1 << 22):
                hasher.update(data)
    except OSError as error:
        raise FileError(f"{file.local} cannot be read: {error.strerror or error}") from error
    return hasher.hexdigest()


def uses_xet() -> bool:
    """Return True if huggingface_hub sends large files by Xet."""
    return not constants.HF_HUB_DISABLE_XET and find_spec("hf_xet") is not None


@contextmanager
def own_progress(sent: Sent) -> Iterator[None]:
    """Switch huggingface_hub's bars off; for Xet, whose bytes only they see, put a counter in their place."""
    were_disabled, name, reporters = are_progress_bars_disabled(), "", None
    if uses_xet() and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        with suppress(ImportError):
            reporters = import_module("huggingface_hub.utils._xet_progress_reporting")
        name = next((each for each in REPORTERS if hasattr(reporters, each)), "")
    if not name:
        disable_progress_bars()
        try:
            yield
        finally:
            if not were_disabled:
                enable_progress_bars()
        return
    theirs = getattr(reporters, name)
    setattr(reporters, name, type("Reporter", (_XetReporter,), {"sent": sent}))
    enable_progress_bars()
    try:
        yield
    finally:
        setattr(reporters, name, theirs)
        if were_disabled:
            disable_progress_bars()


def _message(operations: Iterable[Any], count: int) -> str:
    """Return the message of a commit."""
    added = [each.path_in_repo for each in operations if isinstance(each, CommitOperationAdd)]
    if added == [CARD]:
        return "Update the model card"
    if not added:
        return "Delete files that are gone"
    return f"Upload {added[0]}" if count == 1 else f"Upload {count} files"
