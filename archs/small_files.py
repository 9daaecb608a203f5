"""Read a checkpoint's small files, which come from strangers: sizes are bounded before anything is allocated."""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any

from quants.errors import FileError
from quants.spelling import did_you_mean

GIT_LFS_POINTER = b"version https://git-lfs"
MAX_BYTES = 256 << 20  # more than any tokenizer has
MAX_VALUES = 6_000_000  # of a JSON text: Gemma's tokenizer.json has two million
MAX_DEPTH = 64
MAX_WORDS = 4_000_000
MAX_NAMES = 1000  # of a folder, looked through for a near one

FileState = tuple[int, int, int, int]  # device, inode, size and time of change: another after a change
_reads: ContextVar[dict[Path, FileState] | None] = ContextVar("_reads", default=None)


@contextmanager
def recorded_reads() -> Iterator[dict[Path, FileState]]:
    """Record the state of each file that is read in the block, as it was before its first read.

    A block inside another one adds its files to the outer one's, unless it ends with an error.
    """
    reads: dict[Path, FileState] = {}
    token = _reads.set(reads)
    try:
        yield reads
    finally:
        _reads.reset(token)
    for path, state in reads.items():
        _record(path, state)


def record_read(path: Path, status: os.stat_result) -> None:
    """Record a file that is about to be read, in the innermost block of `recorded_reads`."""
    _record(path, file_state(status))


def record_state(path: Path, state: FileState) -> None:
    """Record the state of a file that was read elsewhere, such as an object in a store."""
    _record(path, state)


def _record(path: Path, state: FileState) -> None:
    if (reads := _reads.get()) is not None:
        reads.setdefault(path, state)


def file_state(status: os.stat_result) -> FileState:
    """Return device, inode, size and time of change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_file(path: Path) -> bytes:
    """Return the content of a file. Raises FileError for a path that is no file, a file too large, or a git-lfs
    pointer.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{path} is not a plain file")
        if status.st_size > MAX_BYTES:
            raise FileError(f"{path} has {status.st_size:,} bytes; at most {MAX_BYTES:,} were expected")
        record_read(path, status)
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"there is no file {path}", hint_for_missing(path)) from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    check_not_pointer(path, content)
    return content


def hint_for_missing(path: Path) -> str:
    """Return what to do where a path does not exist: names like its own in the folder, or where it was looked for."""
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    try:
        names = [each.name for each in islice(folder.iterdir(), MAX_NAMES)]
    except OSError:
        names = []
    return did_you_mean(path.name, names) or f"{folder} has nothing with a name like it"


def read_text(path: Path) -> str:
    """Return a file's UTF-8 text. Raises FileError."""
    try:
        return read_vocabulary(path).decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: {error}") from error


def read_vocabulary(path: Path) -> bytes:
    """Return a vocabulary file: a line for each word, or (SentencePiece) a tag that is the same byte. Raises
    FileError.
    """
    content = read_file(path)
    if content.count(b"\n") > MAX_WORDS:
        raise FileError(f"{path} has more than {MAX_WORDS:,} words, which no vocabulary has")
    return content


def read_json(path: Path) -> Any:
    """Return the value of a JSON file. Raises FileError."""
    try:
        return parse_json(read_file(path))
    except ValueError as error:
        raise FileError(f"{path} is not valid JSON: {error}") from error


def read_json_object(path: Path, optional: bool = False) -> dict[str, Any]:
    """Return the object of a JSON file. Raises FileError if it is missing, or holds anything else.

    optional: return an empty object where there is no file.
    """
    content = {} if optional and not path.is_file() else read_json(path)
    if not isinstance(content, dict):
        raise FileError(f"{path} holds {type(content).__name__}, not a JSON object")
    return content


def parse_json(text: bytes | str, unique: bool = False) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for a text that would take memory out of proportion.

    unique: refuse objects that have a key twice.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    values = raw.count(b",") + raw.count(b"[") + 4 * raw.count(b"{")  # objects take most memory
    hook = _unique if unique else None
    if values > MAX_VALUES:
        raise ValueError(f"it has about {values:,} values, more than any file needs ({MAX_VALUES:,})")
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text, object_pairs_hook=hook)
    except RecursionError:
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice[:100]!r} appears twice")
    return content


def check_not_pointer(path: Path, beginning: bytes) -> None:
    """Raise FileError for a pointer file, which git leaves in place of a large file."""
    if beginning[: len(GIT_LFS_POINTER)] == GIT_LFS_POINTER:
        hint = f"run `git lfs pull` in {path.parent}"
        raise FileError(f"{path} is a git-lfs pointer, not the file itself", hint)
