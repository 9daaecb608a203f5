"""Overwrite part of a file so that after a crash the old bytes or the new ones can be restored.

The journal, a file next to the edited one, is complete before the first byte is overwritten. It is removed when the
last byte is durable:

8 bytes "GGUFEDIT" · u32 bytes of a JSON object (offset, size, file_size, guarded, guard) · the object · old bytes ·
new bytes · sha256 of all before
"""

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quants.errors import FileError

from ..atomic import atomic_output, explained, write_at
from ..entries import check_writable, sync_folder
from ..locks import held, is_named

MAGIC = b"GGUFEDIT"
DIGEST_BYTES = 32
SUFFIX = ".journal"


@dataclass(frozen=True)
class Journal:
    """Describe an overwrite: `old` became `new` at `offset` of a file of `file_size` bytes.

    guard: sha256 of the first `guarded` bytes without the overwritten ones; it identifies the file.
    """

    offset: int
    old: bytes
    new: bytes
    file_size: int
    guarded: int
    guard: str

    def store(self) -> bytes:
        numbers = {"offset": self.offset, "size": len(self.old), "file_size": self.file_size, "guarded": self.guarded}
        described = json.dumps({**numbers, "guard": self.guard}).encode()
        body = MAGIC + struct.pack("<I", len(described)) + described + self.old + self.new
        return body + hashlib.sha256(body).digest()


def journal_path(path: Path) -> Path:
    """Return the path of a file's journal: next to the file itself, not next to a link to it."""
    real = path.resolve()
    return real.with_name(real.name + SUFFIX)


def overwrite(fd: int, path: Path, offset: int, new: bytes, guarded: int) -> None:
    """Replace bytes of a locked file under a journal. guarded: bytes from the start that only such edits change."""
    check_writable(path)
    old = _read(fd, len(new), offset)
    journal = Journal(offset, old, new, os.fstat(fd).st_size, guarded, _guard(fd, guarded, offset, len(new)))
    with atomic_output(journal_path(path)) as file:
        file.write(journal.store())
    _apply(path, fd, offset, new)


def recover(path: Path, roll_back: bool = False) -> str:
    """Complete an interrupted edit, or undo it; return what was done. Raises FileError for another file's journal."""
    path = Path(path)
    journal_file = journal_path(path)
    if not journal_file.is_file():
        return "nothing to recover"
    with held(path) as fd:
        if not journal_file.is_file():
            return "nothing to recover"  # its own writer has ended it meanwhile
        journal = _load(journal_file)
        size = os.fstat(fd).st_size
        current = np.frombuffer(_read(fd, len(journal.old), journal.offset), np.uint8)
        old, new = np.frombuffer(journal.old, np.uint8), np.frombuffer(journal.new, np.uint8)
        is_same = size == journal.file_size and len(current) == len(old) and ((current == old) | (current == new)).all()
        if not is_same or _guard(fd, journal.guarded, journal.offset, len(old)) != journal.guard:
            hint = f"if {path.name} is as it should be, delete {journal_file.name}"
            raise FileError(f"{path} is not the file that {journal_file.name} belongs to", hint)
        _apply(path, fd, journal.offset, journal.old if roll_back else journal.new)
    return "rolled back" if roll_back else "completed"


def _apply(path: Path, fd: int, offset: int, data: bytes) -> None:
    before = os.fstat(fd)
    with explained(path, len(data)):
        write_at(fd, memoryview(data), offset)
        if os.fstat(fd).st_mtime_ns <= before.st_mtime_ns:  # clocks tick slowly, and readers go by it
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        os.fsync(fd)
    journal_file = journal_path(path)
    journal_file.unlink()
    sync_folder(journal_file.parent)
    if not is_named(fd, path):
        raise FileError(f"{path} was replaced by another program meanwhile", hint="run the edit again")


def _read(fd: int, size: int, offset: int) -> bytes:
    pieces = []
    while size and (piece := os.pread(fd, size, offset)):
        pieces.append(piece)
        size, offset = size - len(piece), offset + len(piece)
    return b"".join(pieces)


def _guard(fd: int, guarded: int, offset: int, size: int) -> str:
    digest = hashlib.sha256(_read(fd, min(offset, guarded), 0))
    digest.update(_read(fd, max(guarded - offset - size, 0), offset + size))
    return digest.hexdigest()


def _load(path: Path) -> Journal:
    damaged = FileError(f"{path} is damaged, or not a journal", hint="fetch the file next to it again")
    stored = path.read_bytes()
    body, digest = stored[:-DIGEST_BYTES], stored[-DIGEST_BYTES:]
    if body[:8] != MAGIC or len(body) < 12 or hashlib.sha256(body).digest() != digest:
        raise damaged
    (length,) = struct.unpack_from("<I", body, 8)
    try:
        described: dict[str, Any] = json.loads(body[12 : 12 + length])
        start, size = 12 + length, described.pop("size")
        old, new = body[start : start + size], body[start + size :]
        if len(old) != size or len(new) != size:
            raise damaged
        return Journal(old=old, new=new, **described)
    except (ValueError, TypeError, KeyError) as error:
        raise damaged from error
