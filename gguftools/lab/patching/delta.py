"""Deltas: how a model's new files are made of its old ones, and of bytes that the delta brings along.

A delta is a GGUF file whose `general.type` is "delta". Sizes (bytes) and SHA-256 of the old and of the new files, each
one after the other, are in `delta.old.sizes`, `delta.old.sha256`, `delta.new.sizes` and `delta.new.sha256`. The new
files one after the other are ranges: `delta.sizes` says how many bytes each has, and `delta.begins` where it begins in
the old files one after the other, or 2^64 - 1 where it is the next bytes of the delta's only tensor, `delta.bytes`.

In a store, files are not read as a whole to verify them. `delta.sha256` is that of what the delta says, its bytes
included. If the old files were in S3 when it was made, `delta.old.versions` are their entity tags.
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
from ...io.stores.pieces import Original, Piece

TYPE, VERSION, BYTES = "delta", 1, "delta.bytes"
NEW = (1 << 64) - 1  # where a range begins that is in the delta
MAX_FILES = 99_999
DIGEST = re.compile(r"[0-9a-f]{64}")

Files = tuple[tuple[int, str], ...]  # bytes and SHA-256 of each
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Delta:
    """What a delta says. ranges: where each begins (NEW for bytes of the delta), and how many bytes it has.

    path, data: where the bytes are that it brings along. versions: entity tags of the
    old files, if they were in S3. digest: SHA-256 of all this, as it says, "" of a delta that has none.
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
    def original(self) -> Original:
        """Return its bytes."""
        return self.opened.original

    @property
    def fresh(self) -> int:
        """Return bytes that it brings along."""
        return sum(size for begin, size in self.ranges if begin == NEW)

    def moves(self) -> list[tuple[list[tuple[int, Move]], list[Move]]]:
        """For each new file what is copied into it: from which old file, and from the delta."""
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
    """SHA-256 of what a delta says. fresh: its bytes, some at a time."""
    digest = hashlib.sha256(json.dumps([old, new], separators=(",", ":")).encode())
    digest.update(np.asarray(ranges, "<u8").tobytes())
    for data in fresh:
        digest.update(data.data)
    return digest.hexdigest()


def plan_delta(
    old: Files, new: Files, ranges: list[tuple[int, int]], digest: str, versions: Sequence[str] = ()
) -> Layout:
    """Return a delta before the bytes are written that it brings along. digest: see `digest_of`."""
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
    """Read a delta, every number of which is checked. Raises FileError."""
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
    """Raise FileError where what a delta says, or its bytes, are not what it had when it was made."""
    if not delta.digest:
        what = f"{delta.path} has no 'delta.sha256', which it needs to be applied in a store"
        raise FileError(what, hint="make it again")
    fresh = Piece(delta.original, delta.data, delta.fresh).read()
    if digest_of(delta.old, delta.new, delta.ranges, fresh) != delta.digest:
        raise _damaged(delta.opened, "its SHA-256 is another than it says")


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
