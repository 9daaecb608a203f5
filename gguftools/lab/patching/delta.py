"""Deltas: GGUF files that describe new files as ranges of old ones and bytes of their own.

A delta's `general.type` is "delta". Sizes (bytes) and SHA-256 of the old and new files, in order, are in
`delta.old.sizes`, `delta.old.sha256`, `delta.new.sizes` and `delta.new.sha256`. The concatenated new files are split
into ranges: `delta.sizes` has the bytes of each, and `delta.begins` its offset in the concatenated old files, or 2^64 -
1 for the next bytes of the delta's only tensor, `delta.bytes`.

In a store, files are not read completely for verification. `delta.sha256` is the digest of the delta's content, its
bytes included. If the old files were in S3 when it was made, `delta.old.versions` are their entity tags.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata, Value, ValueType
from quants import format_named
from quants.errors import FileError

from ...io.gguf.reader import GgufFile, open_gguf
from ...io.gguf.writer import Layout, TensorInfo, plan_file
from ...io.positioned import Move
from ...io.stores.pieces import ByteSource, Piece

TYPE, VERSION, BYTES = "delta", 1, "delta.bytes"
NEW = (1 << 64) - 1  # where a range begins that is in the delta
MAX_FILES = 99_999
DIGEST = re.compile(r"[0-9a-f]{64}")

Files = tuple[tuple[int, str], ...]  # bytes and SHA-256 of each
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Delta:
    """The content of a delta. ranges: offset (NEW for bytes of the delta) and bytes of each.

    path, data: where the delta's own bytes are. versions: entity tags of the old files, if they were in S3. digest: its
    SHA-256 as stored, "" if it has none.
    """

    path: Path
    old: Files
    new: Files
    ranges: tuple[tuple[int, int], ...]
    data: int
    opened: GgufFile
    versions: tuple[str, ...] = ()
    digest: str = ""

    @property
    def original(self) -> ByteSource:
        """Return the delta's file."""
        return self.opened.original

    @property
    def fresh(self) -> int:
        """Return the number of the delta's own bytes."""
        return sum(size for begin, size in self.ranges if begin == NEW)

    def moves(self) -> list[tuple[list[tuple[int, Move]], list[Move]]]:
        """Return for each new file what to copy into it: from which old file, and from the delta."""
        old_ends, new_ends = (list(accumulate(size for size, _ in files)) for files in (self.old, self.new))
        moves: list[tuple[list[tuple[int, Move]], list[Move]]] = [([], []) for _ in self.new]
        at, data, source, target = 0, self.data, 0, 0
        for begin, size in self.ranges:
            if begin != NEW:
                source = bisect_right(old_ends, begin)
            while size:
                while at >= new_ends[target]:
                    target += 1
                to = at - (new_ends[target] - self.new[target][0])
                piece = min(size, new_ends[target] - at)
                if begin == NEW:
                    moves[target][1].append((data, to, piece))
                    data += piece
                else:
                    while begin >= old_ends[source]:
                        source += 1
                    piece = min(piece, old_ends[source] - begin)
                    own = begin - (old_ends[source] - self.old[source][0])
                    moves[target][0].append((source, (own, to, piece)))
                    begin += piece
                at, size = at + piece, size - piece
        return moves


def digest_of(old: Files, new: Files, ranges: Sequence[tuple[int, int]], fresh: Iterable[Bytes]) -> str:
    """Return the SHA-256 of a delta's content. fresh: its bytes, in pieces."""
    digest = hashlib.sha256(json.dumps([old, new], separators=(",", ":")).encode())
    digest.update(np.asarray(ranges, "<u8").tobytes())
    for data in fresh:
        digest.update(data.data)
    return digest.hexdigest()


def plan_delta(
    old: Files, new: Files, ranges: list[tuple[int, int]], digest: str, versions: Sequence[str] = ()
) -> Layout:
    """Return the layout of a delta before its bytes are written. digest: see `digest_of`."""
    metadata = Metadata()
    metadata.set("general.type", TYPE, ValueType.STRING)
    metadata.set("delta.version", VERSION, ValueType.UINT32)
    for name, files in (("old", old), ("new", new)):
        metadata[f"delta.{name}.sizes"] = _numbers([size for size, _ in files])
        metadata[f"delta.{name}.sha256"] = Value([digest for _, digest in files], ValueType.ARRAY, ValueType.STRING)
    metadata.set("delta.sha256", digest, ValueType.STRING)
    if versions:
        metadata["delta.old.versions"] = Value(list(versions), ValueType.ARRAY, ValueType.STRING)
    metadata["delta.begins"] = _numbers([begin for begin, _ in ranges])
    metadata["delta.sizes"] = _numbers([size for _, size in ranges])
    fresh = sum(size for begin, size in ranges if begin == NEW)
    return plan_file(metadata, [TensorInfo(BYTES, (fresh,), format_named("I8"))] if fresh else [])


def _numbers(numbers: list[int]) -> Value:
    return Value(np.asarray(numbers, np.uint64), ValueType.ARRAY, ValueType.UINT64)


def read_delta(path: Path) -> Delta:
    """Read a delta and check all its numbers. Raises FileError."""
    opened = open_gguf(path, join=False)
    if opened.metadata.get("general.type") != TYPE:
        file_type = opened.metadata.get("general.type")
        raise FileError(f"{path} is no delta: general.type is {file_type!r}", hint="`gguftools patch make` writes one")
    version = opened.metadata.get("delta.version")
    if version != VERSION:
        raise FileError(f"{path} is a delta of version {version!r}; {VERSION} is known here")
    old, new = _files(opened, "old"), _files(opened, "new")
    begins, sizes = _array(opened, "delta.begins"), _array(opened, "delta.sizes")
    if len(begins) != len(sizes):
        raise _damaged(opened, f"it has {len(begins)} beginnings of ranges, and {len(sizes)} sizes")
    total, wanted = sum(size for size, _ in old), sum(size for size, _ in new)
    for number, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        if not size or (begin != NEW and begin + size > total):
            what = f"range {number} has {size} bytes from {begin} on; the old files have {total}"
            raise _damaged(opened, what)
    if sum(sizes) != wanted:
        raise _damaged(opened, f"its ranges have {sum(sizes)} bytes, the new files {wanted}")
    fresh = sum(size for begin, size in zip(begins, sizes, strict=True) if begin == NEW)
    tensor = opened.tensors.get(BYTES)
    if len(opened.tensors) != (1 if fresh else 0) or (fresh and tensor is None):
        raise _damaged(opened, f"it has {len(opened.tensors)} tensors; {BYTES!r} alone is expected")
    if tensor is not None and (tensor.format.name != "I8" or tensor.shape != (fresh,)):
        raise _damaged(opened, f"{BYTES!r} is {tensor.format.name} {list(tensor.shape)}; {fresh} bytes are expected")
    ranges = tuple(zip(begins, sizes, strict=True))
    data, digest = opened.offsets.get(BYTES, opened.file_size), opened.metadata.get("delta.sha256", "")
    if not isinstance(digest, str) or (digest and not DIGEST.fullmatch(digest)):
        raise _damaged(opened, "'delta.sha256' is no SHA-256")
    return Delta(path, old, new, ranges, data, opened, _versions(opened, len(old)), digest)


def _versions(opened: GgufFile, count: int) -> tuple[str, ...]:
    versions: Any = opened.metadata.get("delta.old.versions", ())
    texts = tuple(versions) if not isinstance(versions, (str, int, float)) else (versions,)
    if texts and (len(texts) != count or not all(isinstance(text, str) for text in texts)):
        raise _damaged(opened, "'delta.old.versions' has another number of texts than there are old files")
    return texts


def check_digest(delta: Delta) -> None:
    """Raise FileError if a delta's content does not match its SHA-256."""
    if not delta.digest:
        what = f"{delta.path} has no 'delta.sha256', which it needs to be applied in a store"
        raise FileError(what, hint="make it again")
    fresh = Piece(delta.original, delta.data, delta.fresh).read()
    if digest_of(delta.old, delta.new, delta.ranges, fresh) != delta.digest:
        raise _damaged(delta.opened, "its SHA-256 does not match its content")


def _files(opened: GgufFile, name: str) -> Files:
    sizes, key = _array(opened, f"delta.{name}.sizes"), f"delta.{name}.sha256"
    digests: Any = opened.metadata.get(key, ())
    listed = key in opened.metadata and opened.metadata.value(key).type is ValueType.ARRAY
    texts = list(digests) if listed and opened.metadata.value(key).element is ValueType.STRING else []
    if not 1 <= len(sizes) <= MAX_FILES or len(texts) != len(sizes) or not all(sizes):
        raise _damaged(opened, f"{len(sizes)} sizes and {len(texts)} digests of the {name} files")
    if not all(isinstance(text, str) and DIGEST.fullmatch(text) for text in texts):
        raise _damaged(opened, f"{key!r} holds something else than SHA-256")
    return tuple(zip(sizes, texts, strict=True))


def _array(opened: GgufFile, key: str) -> list[int]:
    if key not in opened.metadata:
        raise _damaged(opened, f"it has no {key!r}")
    value = opened.metadata.value(key)
    if value.type is not ValueType.ARRAY or value.element is not ValueType.UINT64:
        raise _damaged(opened, f"{key!r} is {value.gguf_type}; ARRAY/UINT64 is expected")
    return [int(number) for number in value.data.tolist()]


def _damaged(opened: GgufFile, problem: str) -> FileError:
    return FileError(f"{opened.path} is a damaged delta: {problem}", hint="fetch it again")
