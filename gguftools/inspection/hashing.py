"""Hashes of tensors and of whole models, listed and checked in the reference's manifest format.

A line is `ALGORITHM  HEX  FILE:TENSOR`, or `ALGORITHM  HEX  FILE` for all tensors' data in file order. Metadata and
padding are not part of it, so that renaming a model changes nothing.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from quants.errors import FileError, OptionError

from ..files.atomic import Reads, atomic_output, output_path
from ..files.gguf.reader import open_gguf
from ..inputs import read_by_calls
from ..metadata.visible import visible

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int, str], None]

ALGORITHMS = ("xxh64", "sha1", "sha256")
UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "en.wikipedia.org/wiki/Llama.cpp")
WORTH_A_THREAD = 1 << 16  # bytes
CHUNK = 1 << 24
ESCAPE = "\\"
ESCAPED = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5})")
LINE = re.compile(r"(\w+)\s+([0-9A-Fa-f-]+) [ *](.+)")


class Hasher(Protocol):
    """What hashlib's objects and ours have in common."""

    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Digest:
    """A hash of one tensor, or (tensor None) of all. file: as it was named."""

    algorithm: str
    hex: str
    file: str
    tensor: str | None = None

    def line(self) -> str:
        """As it stands in a manifest. As in coreutils', `\\` in front says that the name has escapes."""
        name = self.file if self.tensor is None else f"{self.file}:{self.tensor}"
        if visible(name) == name:
            return f"{self.algorithm:<8}  {self.hex}  {name}"
        return "\\" + f"{self.algorithm:<8}  {self.hex}  {visible(name.replace(ESCAPE, 2 * ESCAPE))}"

    def as_dict(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm, "hash": self.hex, "file": self.file, "tensor": self.tensor}


@dataclass(frozen=True)
class Mismatch:
    """What a manifest says and what was found: None where there is no such tensor, or no such line."""

    name: str
    algorithm: str
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.name}: not in the file"
        if self.expected is None:
            return f"{self.name}: not in the manifest"
        return f"{self.name}: {self.algorithm} is {self.found}, not {self.expected}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "algorithm": self.algorithm, "expected": self.expected, "found": self.found}


@dataclass(frozen=True)
class CheckReport:
    """How many lines of a manifest were checked for a file, and which were wrong."""

    file: str
    checked: int
    mismatches: list[Mismatch]

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "checked": self.checked, "mismatches": [each.as_dict() for each in self.mismatches]}


def hash_file(
    path: PathLike,
    algorithms: Iterable[str] = ("xxh64",),
    tensors: bool = True,
    progress: Progress | None = None,
) -> list[Digest]:
    """Hashes of each tensor (unless tensors=False), then of all, by each algorithm: xxh64, sha1, sha256, uuid.

    uuid is of the whole only: version 5, in the reference's name space. Of a split set, any shard may be named; the
    hashes are those of the merged file. Raises FileError, OptionError.
    """
    wanted = _known(algorithms)
    opened = open_gguf(Path(path))
    total, done = sum(tensor.nbytes for tensor in opened.tensors.values()), 0
    whole = {name: _start(name) for name in wanted}
    found: list[Digest] = []
    with ThreadPoolExecutor(min(2 * len(wanted), os.cpu_count() or 1)) as pool:
        for tensor in read_by_calls(opened).values():
            own = {name: _start(name) for name in wanted if name != "uuid"} if tensors else {}
            step = max(1, CHUNK // max(1, tensor.row_bytes))
            for start in range(0, tensor.rows, step):
                data = tensor.raw(start, min(start + step, tensor.rows)).reshape(-1).data
                spread: Any = pool.map if len(data) >= WORTH_A_THREAD else map
                list(spread(lambda hasher, data=data: hasher.update(data), (*own.values(), *whole.values())))
                done += len(data)
                if progress is not None:
                    progress(done, total, tensor.name)
            found += [Digest(name, hasher.hexdigest(), str(path), tensor.name) for name, hasher in own.items()]
    return found + [Digest(name, _finish(name, hasher), str(path)) for name, hasher in whole.items()]


def _known(algorithms: Iterable[str]) -> list[str]:
    known = (*ALGORITHMS, "uuid")
    given = set(algorithms)
    if unknown := given - set(known):
        raise OptionError(f"there is no algorithm {min(unknown)!r}", hint=f"they are {', '.join(known)}")
    return [name for name in known if name in given]


def _start(algorithm: str) -> Hasher:
    if algorithm == "xxh64":
        from ..files.xxh64 import XXH64

        return XXH64()
    if algorithm == "uuid":
        return hashlib.sha1(UUID_NAMESPACE.bytes)
    return hashlib.new(algorithm)


def _finish(algorithm: str, hasher: Hasher) -> str:
    if algorithm != "uuid":
        return hasher.hexdigest()
    return str(uuid.UUID(hex=hasher.hexdigest()[:32], version=5))


def write_manifest(
    path: PathLike, digests: Iterable[Digest], overwrite: bool = False, reads: Iterable[PathLike] = ()
) -> list[Digest]:
    """Write a manifest, and return what is in it; digests may be computed while it is open. reads: the files.

    Raises FileError, OptionError.
    """
    read = Reads(tuple(shard for each in reads for shard in open_gguf(Path(each)).shards))
    with atomic_output(output_path(path), "w", overwrite, read) as file:
        found = list(digests)
        file.writelines(f"{digest.line()}\n" for digest in found)
    return found


def read_manifest(path: PathLike) -> list[Digest]:
    """The lines of a manifest. Raises FileError for one that is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise FileError(f"{path} is not a manifest: it is not text") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = LINE.fullmatch(line.removeprefix(ESCAPE).rstrip())
        if match is None or match[1] not in (*ALGORITHMS, "uuid"):
            known = ", ".join((*ALGORITHMS, "uuid"))
            raise FileError(f"{path}, line {number} is not ALGORITHM  HEX  NAME with one of {known}: {line[:60]!r}")
        name = ESCAPED.sub(_unescaped, match[3]) if line.startswith(ESCAPE) else match[3]
        rows.append((match[1], match[2].lower(), name))
    names = {name for _, _, name in rows}
    wholes = {name for name in names if any(other.startswith(f"{name}:") for other in names)}
    return [Digest(algorithm, value, *_parts(name, wholes)) for algorithm, value, name in rows]


def _unescaped(match: re.Match[str]) -> str:
    return codecs.decode(match[0], "unicode_escape")


def _parts(name: str, wholes: set[str]) -> tuple[str, str | None]:
    """File and tensor. Files that have a line of their own tell where the name of a file ends; else the last colon."""
    if name in wholes:
        return name, None
    for file in wholes:
        if name.startswith(f"{file}:"):
            return file, name.removeprefix(f"{file}:")
    file, colon, tensor = name.rpartition(":")
    return (file, tensor) if colon else (name, None)


def check_file(path: PathLike, manifest: PathLike, progress: Progress | None = None) -> CheckReport:
    """Compare a file with a manifest: with its lines for a file of this name, or with all if they are for one file.

    Raises FileError where the manifest has nothing for the file.
    """
    lines = _lines_for(Path(path), read_manifest(manifest), manifest)
    has_tensors = any(line.tensor is not None for line in lines)
    found = {
        (digest.algorithm, digest.tensor): digest.hex
        for digest in hash_file(path, {line.algorithm for line in lines}, has_tensors, progress)
    }
    expected = {(line.algorithm, line.tensor): line.hex for line in lines}
    wrong = [
        Mismatch(tensor or str(path), algorithm, expected.get((algorithm, tensor)), found.get((algorithm, tensor)))
        for algorithm, tensor in dict.fromkeys((*expected, *found))
        if expected.get((algorithm, tensor)) != found.get((algorithm, tensor))
        and not (tensor is None and (algorithm, tensor) not in expected)
    ]
    return CheckReport(str(path), len(lines), wrong)


def _lines_for(path: Path, lines: Sequence[Digest], manifest: PathLike) -> list[Digest]:
    files = {line.file for line in lines}
    mine = [line for line in lines if Path(line.file).name == path.name] if len(files) != 1 else list(lines)
    if not mine:
        some = ", ".join(sorted(files)[:3])
        raise FileError(f"{manifest} has no hashes of {path.name}" + (f"; it has those of {some}" if some else ""))
    return mine
