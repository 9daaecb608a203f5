"""Fetch one file of a repository by several connections, so that an interrupted run is continued by the next one.

A small file is fetched into memory, a large one in blocks into NAME.partial with a journal. The file gets its name when
its size and its digest are the repository's.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

from quants.errors import FileError
from quants.threads import started_pool

from ...io.atomic import atomic_output, write_at
from ...io.stores.hub import RemoteFile, Repository
from ...io.unfinished import Unfinished
from ...writing.resume import KEY, journal_path, resumable

BLOCK = 16 << 20  # bytes that one request fetches, and that are lost by an interruption
CONNECTIONS = 4
STEP = 1 << 22  # bytes hashed at a time
BETWEEN = 0.1  # seconds from one report to the next

Advance = Callable[[int], None]


class _Stopped(Exception):  # noqa: N818  # no error: the work is given up
    """Report that another block failed."""


class _Block:
    """Write the bytes of a block to the file as they come."""

    def __init__(self, fd: int, begin: int, lock: threading.Lock, stop: threading.Event) -> None:
        self._fd, self._begin, self._lock, self._stop, self._count = fd, begin, lock, stop, 0

    def __len__(self) -> int:
        return self._count

    def extend(self, data: bytes) -> None:
        with self._lock:  # so that nothing is written once the file may be closed
            if self._stop.is_set():
                raise _Stopped
            write_at(self._fd, memoryview(data), self._begin + self._count)
        self._count += len(data)


def fetch_file(repository: Repository, file: RemoteFile, target: Path, overwrite: bool, advance: Advance) -> None:
    """Fetch a file whose folder exists. advance(bytes that came). Raises FileError, also for wrong contents."""
    if file.size > BLOCK:
        _fetch_large(repository, file, target, overwrite, advance)
        return
    data = repository.file(file.path).fetch(0, file.size).tobytes() if file.size else b""
    with atomic_output(target, overwrite=overwrite) as output:
        hasher = _hasher(file)
        hasher.update(data)
        _check(repository, file, hasher.hexdigest())
        output.write(data)
    advance(file.size)


def begun_bytes(file: RemoteFile, target: Path) -> int:
    """Return how many bytes of a file an interrupted run has left."""
    return min(file.size, BLOCK * len(_begun_blocks(file, target)))


def local_digest(file: RemoteFile, path: Path, advance: Advance) -> str:
    """Return the digest of a local file as the repository gives it for `file`. Raises FileError."""
    try:
        with path.open("rb") as opened:
            hasher = _hasher(file, os.fstat(opened.fileno()).st_size)
            while data := opened.read(STEP):
                hasher.update(data)
                advance(len(data))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    return f"{'sha256' if file.sha256 else 'git'}:{hasher.hexdigest()}"


def _fetch_large(repository: Repository, file: RemoteFile, target: Path, overwrite: bool, advance: Advance) -> None:
    done = _begun_blocks(file, target)
    with resumable(target, _head(file), bool(done), overwrite) as (part, _):
        if not done:
            os.ftruncate(part.fd, file.size)
        advance(min(file.size, BLOCK * len(done)))
        _fetch_blocks(repository, file, part, done, advance)
        hasher = _hasher(file)
        for position in range(0, file.size, STEP):
            hasher.update(os.pread(part.fd, STEP, position))
        _check(repository, file, hasher.hexdigest())


def _fetch_blocks(repository: Repository, file: RemoteFile, part: Unfinished, done: set[int], advance: Advance) -> None:
    """Fetch the blocks that are not done; note each in the journal."""
    lock, stop = threading.Lock(), threading.Event()
    blocks: list[_Block] = []

    def fetch(index: int) -> None:
        begin = index * BLOCK
        block = _Block(part.fd, begin, lock, stop)
        blocks.append(block)
        repository.file(file.path).fetch_into(block, begin, min(begin + BLOCK, file.size))
        with lock:
            if not stop.is_set():
                part.note(index)

    missing = [index for index in range(_count(file)) if index not in done]
    pool, reported = started_pool(min(CONNECTIONS, len(missing) or 1)), 0
    left: set[Future[None]] = {pool.submit(fetch, index) for index in missing}
    try:
        while left:
            ended, left = wait(left, BETWEEN)
            for future in ended:
                future.result()
            came = sum(map(len, blocks))
            advance(came - reported)
            reported = came
    finally:
        with lock:
            stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _begun_blocks(file: RemoteFile, target: Path) -> set[int]:
    """Return the blocks that an interrupted run noted for the same content; the digest is checked at the end."""
    try:
        head, *lines = journal_path(target).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return set()
    blocks = set()
    with suppress(ValueError):
        if json.loads(head) != _head(file):
            return set()
        for line in lines:
            index = json.loads(line)
            if type(index) is int and 0 <= index < _count(file):
                blocks.add(index)
    return blocks


def _head(file: RemoteFile) -> dict[str, object]:
    return {KEY: 1, "plan": f"fetch {file.digest}", "sources": [], "bytes": file.size, "block": BLOCK}


def _count(file: RemoteFile) -> int:
    return -(-file.size // BLOCK)


def _hasher(file: RemoteFile, size: int | None = None) -> "hashlib._Hash":
    """Return what computes the repository's digest of a file of this size: SHA-256, or git's id of a blob."""
    if file.sha256:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size if size is None else size}\0".encode(), usedforsecurity=False)


def _check(repository: Repository, file: RemoteFile, hexdigest: str) -> None:
    if hexdigest != (file.sha256 or file.oid):
        form, expected = file.digest.split(":")
        what = f"what came has the {form} digest {hexdigest[:16]}…, the repository gives {expected[:16]}…"
        raise FileError(
            f"{repository.name}: {file.path}: {what}", "run it again: the file is fetched from its beginning"
        )
