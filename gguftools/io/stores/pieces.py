"""Compose objects of ranges of other objects: the store copies what it can, the rest is read and sent.

All parts of an upload but the last must have 5 MiB. So where new bytes next to a copied range are fewer, some bytes of
the range are read and sent with them: as few as make a part.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quants.threads import started_pool

from .path import StorePath
from .retries import Bytes

MIB = 1 << 20
MIN_PART = 5 * MIB  # bytes of a part but the last; ranges are copied only from larger objects
MAX_COPIED = 512 * MIB  # bytes of a copied part: larger ones are allowed, but slow
MAX_PARTS = 10_000
STEP = 8 * MIB  # bytes per request
COPIES = 8  # parts that the store copies at a time

NOTHING = np.empty(0, np.uint8)


@dataclass(eq=False)
class ByteSource:
    """Describe the source of pieces: an object as it was when it was opened, a local file, or bytes without a name.

    path: empty for bytes in memory and computed bytes. size: in bytes. version: entity tag of an object, or another
    mark of its store; else "". fetch(begin, end): returns these bytes, uint8. beginning: its first bytes, if they are
    in memory already. fetched: bytes requested so far.
    """

    path: Path
    size: int
    version: str
    fetch: Callable[[int, int], Bytes]
    beginning: Bytes = field(default_factory=lambda: NOTHING, repr=False)
    fetched: int = 0
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    @property
    def is_stored(self) -> bool:
        return isinstance(self.path, StorePath)

    @property
    def is_file(self) -> bool:
        return not self.is_stored and bool(self.path.name)

    def read(self, begin: int, end: int) -> Bytes:
        """Return bytes begin … end, uint8. Raises FileError, OSError."""
        known = self.beginning[begin:end]
        begin += len(known)
        if begin >= end:
            return known
        with self._lock:
            self.fetched += end - begin
        rest = self.fetch(begin, end)
        return np.concatenate((known, rest)) if len(known) else rest


class Piece(NamedTuple):
    """Describe a range of an object to be: `size` bytes of an original from `begin` on."""

    original: ByteSource
    begin: int
    size: int

    def read(self) -> Iterator[Bytes]:
        """Yield its bytes, STEP at a time. Raises FileError, OSError."""
        end = self.begin + self.size
        for at in range(self.begin, end, STEP):
            yield self.original.read(at, min(at + STEP, end))

    def cut(self, size: int) -> "tuple[Piece, Piece]":
        """Split after `size` bytes."""
        return self._replace(size=size), self._replace(begin=self.begin + size, size=self.size - size)


def at_hand(data: bytes) -> Piece:
    """Return a piece of bytes in memory."""
    raw = np.frombuffer(data, np.uint8)
    return Piece(ByteSource(Path(), len(data), "", lambda begin, end: raw[begin:end]), 0, len(data))


def zeros(size: int) -> Piece:
    """Return a piece of zero bytes."""
    return Piece(ByteSource(Path(), size, "", lambda begin, end: np.zeros(end - begin, np.uint8)), 0, size)


@dataclass
class Part:
    """Hold a part of an upload: one piece that the store copies, or pieces that are sent."""

    pieces: list[Piece]
    is_copied: bool

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True)
class Traffic:
    """Count bytes that are read from stores, sent to them and copied inside them."""

    read: int = 0
    sent: int = 0
    copied: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.read + other.read, self.sent + other.sent, self.copied + other.copied)

    def as_dict(self) -> dict[str, int]:
        """Return the counts as `--json` prints them."""
        return {"read": self.read, "sent": self.sent, "copied": self.copied}


def traffic_of(parts: Sequence[Part]) -> Traffic:
    """Return the traffic of parts. Bytes in memory are not read."""
    sent = [part for part in parts if not part.is_copied]
    read = sum(
        max(0, piece.begin + piece.size - max(piece.begin, len(piece.original.beginning)))
        for part in sent
        for piece in part.pieces
        if piece.original.is_stored
    )
    return Traffic(read, sum(part.size for part in sent), sum(part.size for part in parts if part.is_copied))


def plan_parts(
    pieces: Iterable[Piece],
    can_copy: Callable[[ByteSource], bool],
    part_bytes: int,
    min_bytes: int = MIN_PART,
    max_parts: int = MAX_PARTS,
) -> list[Part]:
    """Cut an object into the parts of an upload.

    pieces: the object's bytes, in order. can_copy(original): True if the store copies ranges of it. part_bytes: about,
    of a part that is sent; at least 2 × min_bytes. With more than `max_parts` parts, short ranges are sent instead of
    copied.
    """
    joined = list(_joined(pieces))
    max_copied = max(MAX_COPIED, -(-sum(piece.size for piece in joined) // max(1, max_parts // 2)))
    while True:
        segments = _bridged(_segments(joined, can_copy, min_bytes), min_bytes)
        sent = max(part_bytes, 2 * min_bytes)
        parts = [part for each in segments for part in _cut(each, max_copied if each.is_copied else sent)]
        if len(parts) <= max_parts:
            return parts
        min_bytes *= 2


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join pieces that follow each other in one original."""
    last: Piece | None = None
    for piece in pieces:
        if not piece.size:
            continue
        if last is not None and piece.original is last.original and last.begin + last.size == piece.begin:
            last = last._replace(size=last.size + piece.size)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _segments(pieces: Sequence[Piece], can_copy: Callable[[ByteSource], bool], min_bytes: int) -> list[Part]:
    """Group pieces into ranges that are copied and bytes between them that are sent."""
    segments: list[Part] = []
    for number, piece in enumerate(pieces):
        is_long = piece.size >= min_bytes or number == len(pieces) - 1
        is_copied = is_long and piece.original.size > MIN_PART and can_copy(piece.original)
        if segments and not is_copied and not segments[-1].is_copied:
            segments[-1].pieces.append(piece)
        else:
            segments.append(Part([piece], is_copied))
    return segments


def _bridged(parts: list[Part], min_bytes: int) -> list[Part]:
    """Fill sent parts up to `min_bytes` from the copied parts next to them."""
    i = 0
    while i < len(parts) - 1:
        missing = min_bytes - parts[i].size
        if parts[i].is_copied or missing <= 0:
            i += 1
            continue
        left, right = parts[i - 1] if i else None, parts[i + 1]
        spare = max(left.size - min_bytes, 0) if left else 0
        is_last = i + 2 == len(parts)  # the last part may have any size
        if spare + (right.size - 1 if is_last else right.size - min_bytes) >= missing:
            if left and (taken := min(spare, missing)):
                kept, moved = left.pieces[0].cut(left.size - taken)
                left.pieces, missing = [kept], missing - taken
                parts[i].pieces.insert(0, moved)
            if missing:
                moved, kept = right.pieces[0].cut(missing)
                right.pieces = [kept]
                parts[i].pieces.append(moved)
            i += 1
        elif left and not is_last and left.size < right.size:
            i = _absorb(parts, i - 1)
        else:
            i = _absorb(parts, i + 1)
    return parts


def _absorb(parts: list[Part], number: int) -> int:
    """Send a part that would have been copied, together with its sent neighbours; return the joined part's number."""
    first, last = number, number
    while first and not parts[first - 1].is_copied:
        first -= 1
    while last + 1 < len(parts) and not parts[last + 1].is_copied:
        last += 1
    parts[first : last + 1] = [Part([piece for part in parts[first : last + 1] for piece in part.pieces], False)]
    return first


def _cut(part: Part, max_bytes: int) -> Iterator[Part]:
    """Cut a part into about equal ones of at most `max_bytes` bytes."""
    count = -(-part.size // max_bytes)
    size, done, left = part.size, 0, list(_joined(part.pieces))
    for number in range(1, count + 1):
        wanted, taken = size * number // count - done, list[Piece]()
        done += wanted
        while wanted:
            piece, left = left[0], left[1:]
            if piece.size > wanted:
                piece, rest = piece.cut(wanted)
                left.insert(0, rest)
            taken.append(piece)
            wanted -= piece.size
        yield Part(taken, part.is_copied)


def compose(
    upload: Any,
    pieces: Sequence[Piece],
    can_copy: Callable[[ByteSource], bool],
    progress: Callable[[int, int], None] | None = None,
) -> Traffic:
    """Fill an upload (see `store.Upload`) with pieces, in order; call progress(bytes done, of how many).

    Parts go over several connections if the store takes them in any order. Raises FileError, OSError.
    """
    try:
        return _Composed(upload, plan_parts(pieces, can_copy, upload.part_bytes), progress).run()
    except NotImplementedError:  # an S3 server without copies of ranges
        upload.forget()
        return _Composed(upload, plan_parts(pieces, lambda _: False, upload.part_bytes), progress).run()


class _Composed:
    """Send and copy the parts of an upload."""

    def __init__(self, upload: Any, parts: Sequence[Part], progress: Callable[[int, int], None] | None) -> None:
        self._upload, self._parts, self._progress = upload, parts, progress
        self._lock, self._sending = threading.Lock(), threading.Semaphore(upload.connections)
        self._done, self._total, self._failed = 0, sum(part.size for part in parts), False

    def run(self) -> Traffic:
        is_any_copied = any(part.is_copied for part in self._parts)
        pool = started_pool(max(COPIES, self._upload.connections) if is_any_copied else self._upload.connections)
        futures = [pool.submit(self._make, number, part) for number, part in enumerate(self._parts)]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except NotImplementedError:
            raise
        except BaseException:
            self._upload.stopped.set()
            raise
        finally:
            self._failed = True  # waiting parts are not started
            pool.shutdown(wait=True, cancel_futures=True)
        return traffic_of(self._parts)

    def _make(self, number: int, part: Part) -> None:
        if self._failed:
            return
        try:
            if part.is_copied:
                original, begin, size = part.pieces[0]
                self._upload.copy(number, original.path, original.version, begin, begin + size)
            else:
                with self._sending:
                    data = np.concatenate([data for piece in part.pieces for data in piece.read()])
                    self._upload.put(number, memoryview(data))  # type: ignore[arg-type]
            with self._lock:
                self._done += part.size
                if self._progress:
                    self._progress(self._done, self._total)
        except BaseException:
            self._failed = True
            raise
