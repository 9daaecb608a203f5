"""Read files that a user names, up to a limit: a path may be endless, a pipe without a writer, or a folder."""

import os
import select
import stat
from pathlib import Path
from typing import NamedTuple

from quants.errors import FileError

from .small_files import hint_for_missing

CHUNK_BYTES = 1 << 20
DEVICE_BYTES = 1 << 20  # bytes read of a device such as /dev/zero at most; terminals have no such limit
PIPE_SECONDS = 60.0  # a pipe may be silent for this long


class Limit(NamedTuple):
    """What a file is, for errors, and the largest number of its bytes that are read."""

    what: str
    max_bytes: int


TEXT = Limit("a text", 1 << 30)
TASKS = Limit("a file of tasks", 1 << 30)  # the largest known have 20 MB
PROMPTS = Limit("a file of prompts", 256 << 20)
VALUE = Limit("a metadata value", 256 << 20)
METADATA_JSON = Limit("a JSON file of metadata", 256 << 20)
GRAMMAR = Limit("a grammar", 16 << 20)
JSON_SCHEMA = Limit("a JSON schema", 16 << 20)
RULES = Limit("a file of tensor rules", 16 << 20)
EXPERT_LIST = Limit("a list of experts", 16 << 20)
HASHES = Limit("a list of hashes", 256 << 20)
PRICES = Limit("a price table", 1 << 20)
IMAGE = Limit("an image", 512 << 20)
SOUND = Limit("a sound", 1 << 30)


def read_bytes(path: Path, limit: Limit) -> bytes:
    """Read a whole file, pipe or terminal. Raises FileError for one over the limit, OSError if it cannot be read."""
    return bytes(_read(path, limit))


def read_text(path: Path, limit: Limit) -> str:
    """Read a UTF-8 file, byte for byte. Raises FileError for anything else, and if it cannot be read."""
    try:
        return _read(path, limit).decode()
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise FileError(f"{path} is not UTF-8 text: {wrong}; {limit.what} is expected") from error
    except OSError as error:
        hint = hint_for_missing(path) if isinstance(error, FileNotFoundError) else None
        raise FileError(f"{path} cannot be read: {error.strerror or error}", hint) from error


def _read(path: Path, limit: Limit) -> bytearray:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe opens whether or not anyone writes to it
    try:
        status = os.fstat(fd)
        check_size(path, status.st_size if stat.S_ISREG(status.st_mode) else 0, limit)
        is_device = stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not os.isatty(fd))
        return _read_all(fd, path, limit._replace(max_bytes=DEVICE_BYTES) if is_device else limit)
    finally:
        os.close(fd)


def _read_all(fd: int, path: Path, limit: Limit) -> bytearray:
    waits = stat.S_ISFIFO(os.fstat(fd).st_mode)
    os.set_blocking(fd, True)
    content = bytearray()
    while True:
        if waits and not select.select([fd], [], [], PIPE_SECONDS)[0]:
            problem = f"{path} is a pipe without input for {PIPE_SECONDS:g} seconds"
            raise FileError(problem, "write to it first, or name a file")
        chunk = os.read(fd, CHUNK_BYTES)
        if not chunk:
            return content
        content += chunk
        check_size(path, len(content), limit)


def check_size(name: Path | str, size: int, limit: Limit) -> None:
    """Raise FileError if the content, read or announced, has more bytes than the limit."""
    if size > limit.max_bytes:
        problem = f"{name} has more than {limit.max_bytes:,} bytes, the most that {limit.what} may have"
        raise FileError(problem, "name a smaller file")
