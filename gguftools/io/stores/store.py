"""Choose the client for a URL."""

import hashlib
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from quants.errors import FileError

from .block_cache import BlockCache
from .path import WEB, StorePath, first_line
from .retries import Bytes

INSTALL = 'pip install "gguftools[stores]"'
HUB_FILE = re.compile(r"(hf://\w[\w.-]*/\w[\w.-]*(?:@(?:refs/(?:pr|convert)/)?[^/]+)?)/(.+)")
BUCKETS = "hf://buckets/"


class StoredObject(Protocol):
    """Read one version of an object.

    size: in bytes. version: changes when the object is replaced. fetch(begin, end): returns these bytes; raises
    FileError if they are of another version.
    """

    @property
    def size(self) -> int: ...
    @property
    def version(self) -> str: ...
    def fetch(self, begin: int, end: int) -> Bytes: ...


class Upload(Protocol):
    """Write an object in parts of `part_bytes`, numbered from 0.

    have: parts that are there already. stopped: set when no request should be repeated. connections: parts sent at a
    time; with one, parts are sent in order.
    """

    path: StorePath
    part_bytes: int
    have: frozenset[int]
    connections: int
    stopped: Any

    def put(self, number: int, data: memoryview) -> None: ...
    def commit(self) -> None: ...
    def abandon(self, keep: bool) -> None: ...
    def make_way(self) -> None: ...
    def withdraw(self) -> None: ...


def file_system(scheme: str) -> Any:
    """Return fsspec's file system for a scheme.

    Raises FileError if it, or a package that it needs, is not installed.
    """
    return made_file_system(scheme, os.getpid())  # threads of it do not go along into a process that is forked


@lru_cache
def made_file_system(scheme: str, process: int) -> Any:
    """Make the file system of `file_system`, once per process."""
    try:
        fsspec = import_module("fsspec")
    except ImportError:
        raise FileError(f"{scheme}:// needs fsspec, which is not installed", hint=INSTALL) from None
    try:
        fs = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        fs = _by_obstore(fsspec, scheme)
        if fs is None:
            hint = INSTALL if scheme == "s3" else {"gs": "pip install gcsfs", "az": "pip install adlfs"}.get(scheme)
            raise FileError(f"{scheme}:// needs a package that is not installed: {first_line(error)}", hint) from None
    except Exception as error:
        raise FileError(f"{scheme}:// cannot be opened: {first_line(error)}") from None
    if _is_s3(fs):
        fs.retries = 1  # `retries` repeats requests
    return fs


def _by_obstore(fsspec: Any, scheme: str) -> Any:
    """Return obstore's file system for a scheme, or None if it isn't installed."""
    try:
        obstore = import_module("obstore.fsspec")
        obstore.register(scheme)
        return fsspec.filesystem(scheme, skip_instance_cache=True)
    except Exception:
        return None


def can_resume(path: StorePath) -> bool:
    """Return True if the store keeps the parts of an interrupted upload: S3 does. Raises FileError."""
    return _is_s3(file_system(path.scheme))


def _is_s3(fs: Any) -> bool:
    return type(fs).__module__ == "s3fs.core"


def _client(path: StorePath) -> tuple[Any, Any]:
    """Return the module that serves a store, `s3` or `generic`, and fsspec's file system. Raises FileError."""
    return import_module(".s3" if can_resume(path) else ".generic", __package__), file_system(path.scheme)


def open_object(path: StorePath, pinned: dict[str, Any] | None = None) -> StoredObject:
    """Open the current version of an object for reading. Raises FileError if it does not exist or may not be read.

    pinned: repositories of the hub by name, each at a commit; new ones are added.
    """
    if path.scheme in WEB:
        from .http import open_web  # here, because it imports much

        return open_web(path)
    if is_pinned(path):
        return _open_on_hub(path, {} if pinned is None else pinned)
    client, fs = _client(path)
    return client.Reader(fs, path)  # type: ignore[no-any-return]


def is_pinned(path: Path) -> bool:
    """Return True for a file of a hub repository: it is read at a commit, so it cannot change."""
    return isinstance(path, StorePath) and path.scheme == "hf" and not str(path).startswith(BUCKETS)


@dataclass(frozen=True)
class _OfCommit:
    """Read a file of a commit; the commit is its version."""

    size: int
    version: str
    fetch: Callable[[int, int], Bytes]


def _open_on_hub(path: StorePath, pinned: dict[str, Any]) -> _OfCommit:
    from .hub import connect

    match = HUB_FILE.fullmatch(str(path))
    if match is None:
        raise FileError(f"{path} does not name a file", hint="write hf://ORG/MODEL/FILE.gguf, or hf://ORG/MODEL@…/…")
    if match[1] not in pinned:
        pinned[match[1]] = connect(match[1])
    repository = pinned[match[1]]
    folder, _, name = match[2].rpartition("/")
    size = repository.listing(folder).get(name)
    if size is None:
        raise FileError(f"{match[1]} has no file {match[2]}", hint=f"see {repository.endpoint}/{repository.repo}")
    return _OfCommit(size, repository.commit, repository.file(match[2]).fetch)


class Objects:
    """Open objects that are read together, each at one version, with one block cache for all."""

    def __init__(self) -> None:
        self._pinned: dict[str, Any] = {}
        self.opened: dict[str, StoredObject] = {}
        self.blocks = BlockCache(self._fetch)

    def open(self, path: StorePath) -> StoredObject:
        """Open an object, once. Raises FileError if it does not exist or may not be read."""
        return self.opened.setdefault(str(path), open_object(path, self._pinned))

    def _fetch(self, name: str, begin: int, end: int) -> Bytes:
        return self.opened[name].fetch(begin, end)


def version_now(path: StorePath) -> tuple[int, str] | None:
    """Return size and version of an object, or None if there is none. Raises FileError."""
    if path.scheme in WEB:
        web_file = open_object(path)
        return web_file.size, web_file.version
    client, fs = _client(path)
    return client.version_now(fs, path)  # type: ignore[no-any-return]


def listing(path: StorePath) -> list[tuple[str, int | None]]:
    """List a folder of a store: (name, bytes), or (name, None) for a folder. Raises FileError."""
    if path.scheme in WEB:
        hint = "download it, and name the folder on this disk"
        raise FileError(f"{path}: web servers do not list folders", hint)
    client, fs = _client(path)
    return client.listed(fs, path)  # type: ignore[no-any-return]


def begin_upload(path: StorePath, total: int, mark: str, replaced: str | None, resume: bool) -> Upload:
    """Begin to write an object.

    total: its bytes. mark: the same text for the same content; used to resume. replaced: version of the object that is
    to be replaced; None if there must be none. resume: keep the parts of an interrupted run, see `can_resume`. Raises
    FileError.
    """
    client, fs = _client(path)
    return client.Upload(fs, path, total, mark if resume else secrets.token_hex(16), replaced, resume)  # type: ignore[no-any-return]


def remove_object(path: StorePath) -> None:
    """Remove an object, if there is one. Raises FileError."""
    client, fs = _client(path)
    client.remove(fs, path)


def copies_between(source: Path, target: StorePath) -> bool:
    """Return True if the target's store copies ranges of the source itself. Raises FileError."""
    return isinstance(source, StorePath) and source.scheme == target.scheme and can_resume(target)  # of S3 both hold


def sent_part_bytes(path: StorePath, total: int) -> int:
    """Return the bytes of a part that `begin_upload` would send. Raises FileError."""
    return _client(path)[0].part_bytes(total)  # type: ignore[no-any-return]


def holds(path: StorePath, total: int, mark: str) -> bool:
    """Return True if an object is what an upload with that mark made. Raises FileError."""
    if not can_resume(path):
        return False
    client, fs = _client(path)
    head = client.stat(fs, path)
    return bool(head and head["ContentLength"] == total and head.get("Metadata", {}).get(client.MARK) == mark)


class CompletedUpload:
    """Stand for an upload that an earlier run completed."""

    connections = 1
    have = frozenset({0})

    def __init__(self, path: StorePath, total: int) -> None:
        self.path, self.part_bytes, self.stopped = path, total, Event()

    def put(self, number: int, data: memoryview) -> None: ...
    def commit(self) -> None: ...
    def abandon(self, keep: bool) -> None: ...
    def make_way(self) -> None: ...
    def withdraw(self) -> None: ...


def state_of_object(size: int, version: str) -> tuple[int, int, int, int]:
    """Return the state of an object in the form of `locks.state_of`."""
    return 0, 0, size, int.from_bytes(hashlib.sha256(version.encode()).digest()[:7], "little")
