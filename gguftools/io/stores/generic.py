"""Read and write any file system of fsspec: ranges of files, and files written from start to end.

fsspec writes, with its multipart uploads. Reads ask for ranges (`cat_file`), because fsspec's files have one position
for all threads. Failed requests are repeated here, as file systems differ in what they repeat.
"""

import contextlib
import secrets
from collections.abc import Callable
from threading import Event
from typing import Any, TypeVar

from quants.errors import FileError

from .path import StorePath, first_line
from .retries import TRANSIENT, Bytes, TransientError, lost_race, receive_all, retried

# Keys of fsspec's info that identify a version, besides the size: the first that exists is used.
VERSIONS = (
    "ETag etag generation version_id md5Hash content_md5 xet_hash blob_id mtime LastModified last_modified modified"
    " updated created"
)
TIMEOUT = 300.0  # seconds for a block
PART = 16 << 20
STEP = 8 << 20  # bytes per request
DIRECT = ("gs", "az", "abfs", "abfss")  # an object gets its name when its file is closed

PERMANENT = (FileExistsError, IsADirectoryError, NotADirectoryError, NotImplementedError, TypeError, ValueError)

T = TypeVar("T")


def ask(path: StorePath, call: Callable[[], T], absent: T | None = None) -> T:
    """Call a library, and turn its errors into TransientError or FileError.

    absent: returned where there is no such object; without it, FileError is raised.
    """
    try:
        return call()
    except FileNotFoundError:
        if absent is not None:
            return absent
        failure: Exception = FileError(f"there is no object {path}")
    except PermissionError as error:
        failure = FileError(f"{path}: the store refuses: {first_line(error)}", hint="check the credentials and rights")
    except (FileError, TransientError):
        raise
    except PERMANENT as error:
        failure = FileError(f"{path}: the store does not do that: {first_line(error)}")
    except Exception as error:  # of any library
        response = getattr(error, "response", None)
        status = next(
            (
                s
                for s in (getattr(error, "code", 0), getattr(error, "status", 0), getattr(response, "status_code", 0))
                if isinstance(s, int) and s
            ),
            0,
        )
        text = first_line(error)
        if status and status not in TRANSIENT:
            failure = FileError(f"{path}: the store answers with status {status}: {text}")
        else:
            failure = TransientError(f"{type(error).__name__}: {text}" if text != type(error).__name__ else text)
    raise failure  # here, to drop the library's traceback, which may show credentials


def stat(fs: Any, path: StorePath) -> dict[str, Any] | None:
    """Return fsspec's info of a file, or None if there is none. Raises FileError."""

    def look() -> dict[str, Any]:
        fs.invalidate_cache()
        return fs.info(path.url)  # type: ignore[no-any-return]

    nothing: dict[str, Any] = {}
    info = retried(f"{path} cannot be reached", lambda: ask(path, look, nothing), is_first=True)
    return info if info and info.get("type") != "directory" else None


def version_now(fs: Any, path: StorePath) -> tuple[int, str] | None:
    """Return size and version of a file, or None if there is none. Raises FileError."""
    info = stat(fs, path)
    return None if info is None else (int(info.get("size") or 0), version_of(info))


def version_of(info: dict[str, Any]) -> str:
    """Return what identifies the version of an object: the first entry of VERSIONS that its info has, else ""."""
    return next((str(info[key]) for key in VERSIONS.split() if info.get(key)), "")


class Reader:
    """Read one version of a file: the current one; see `store.StoredObject`."""

    def __init__(self, fs: Any, path: StorePath) -> None:
        self._fs, self._path = fs, path
        info = stat(fs, path)
        if info is None:
            raise FileError(f"there is no object {path}")
        size = info.get("size")
        if not isinstance(size, int) or size < 0:
            raise FileError(f"{path}: the store does not give its size", hint="fetch it, and name the file")
        self.size, self.version = size, version_of(info)

    def fetch(self, begin: int, end: int) -> Bytes:
        """Return bytes begin … end, uint8. Raises FileError."""

        def receive(position: int, got: bytearray) -> None:
            stop = min(position + STEP, end)
            data = ask(self._path, lambda: self._read(position, stop))
            if len(data) > stop - position:
                problem = f"{self._path}: the store answers with {len(data)} bytes for {stop - position}"
                raise FileError(problem, hint="fetch it, and name the file on this disk")
            got += data

        return receive_all(str(self._path), begin, end, receive)

    def _read(self, begin: int, end: int) -> bytes:
        if getattr(self._fs, "async_impl", False):
            from fsspec.asyn import sync

            return sync(  # type: ignore[no-any-return]
                self._fs.loop,
                self._fs._cat_file,
                self._fs._strip_protocol(self._path.url),
                start=begin,
                end=end,
                timeout=TIMEOUT,
            )
        return self._fs.cat_file(self._path.url, start=begin, end=end)  # type: ignore[no-any-return]


def part_bytes(total: int) -> int:
    """Return the bytes of a part, for a file of `total` bytes."""
    return max(PART, -(-total // 9_000))


class Upload:
    """Write a file from start to end; see `store.Upload`. It gets its name when it is complete.

    Where a file system shows files while they are written, it has a temporary name until then.
    """

    connections = 1
    have: frozenset[int] = frozenset()

    def __init__(
        self, fs: Any, path: StorePath, total: int, mark: str, replaced: str | None, resume: bool = False
    ) -> None:
        self._fs, self.path, self._total, self._replaced = fs, path, total, replaced
        self.part_bytes, self.stopped = part_bytes(total), Event()
        is_direct = path.scheme in DIRECT
        self._named = path if is_direct else path.with_name(f".{path.name[:32]}.{secrets.token_hex(6)}.partial")
        what = f"{path} cannot be written"
        self._file = retried(
            what, lambda: ask(path, lambda: fs.open(self._named.url, "wb", block_size=self.part_bytes))
        )

    def put(self, number: int, data: memoryview) -> None:
        """Write part `number`, which follows the last one. Raises FileError."""
        try:  # not tried again here: part of it may be written; file systems try again by themselves
            ask(self.path, lambda: self._file.write(data))
        except TransientError as error:
            reason = str(error)
        else:
            return
        raise FileError(f"{self.path} cannot be written: {reason}") from TransientError(reason)

    def commit(self) -> None:
        """Give the file its name. Raises FileError if another program wrote that name."""
        info = stat(self._fs, self.path)
        if (version_of(info) if info else None) != self._replaced:
            raise lost_race(self.path, self._replaced is not None)
        try:
            ask(self.path, self._file.close)
            if self._named != self.path:
                ask(self.path, lambda: self._fs.mv(self._named.url, self.path.url))
        except TransientError as error:
            raise FileError(f"{self.path} cannot be written: {error}") from TransientError(str(error))
        stored = stat(self._fs, self.path)
        if stored is None or stored.get("size") != self._total:
            raise FileError(f"{self.path} is not what was written: another program replaced it", hint="run it again")

    def abandon(self, keep: bool) -> None:
        """Remove what is written of the file."""
        file, self._file = self._file, None
        with contextlib.suppress(Exception):
            if self._named == self.path:
                file.discard()
            else:
                file.close()
                self._fs.rm_file(self._named.url)
        with contextlib.suppress(Exception):
            file.closed = True  # so that the garbage collector does not write the rest

    def make_way(self) -> None:
        """Remove the file that this one replaces, so that nobody opens the other shards of its set meanwhile.

        Raises FileError if another program replaced it.
        """
        if self._replaced is not None:
            info = stat(self._fs, self.path)
            if info is not None and version_of(info) != self._replaced:
                raise lost_race(self.path, True)
            remove(self._fs, self.path)
            self._replaced = None

    def withdraw(self) -> None:
        """Remove the file again, unless it replaced one: other files of its set did not get their names."""
        if self._replaced is None:
            with contextlib.suppress(Exception):
                self._fs.rm_file(self.path.url)


def remove(fs: Any, path: StorePath) -> None:
    """Remove a file, if there is one. Raises FileError."""
    if stat(fs, path) is not None:
        retried(f"{path} cannot be removed", lambda: ask(path, lambda: fs.rm_file(path.url)))


def listed(fs: Any, path: StorePath) -> list[tuple[str, int | None]]:
    """List a folder: (name, bytes), or (name, None) for a folder. Raises FileError."""

    def look() -> list[dict[str, Any]]:
        fs.invalidate_cache()
        return fs.ls(path.url, detail=True)  # type: ignore[no-any-return]

    entries = []
    for entry in retried(f"{path} cannot be listed", lambda: ask(path, look)):
        name = str(entry.get("name", "")).rstrip("/").rpartition("/")[2]
        is_folder = entry.get("type") == "directory"
        entries.append((name, None if is_folder else int(entry.get("size") or 0)))
    return [each for each in entries if each[0]]
