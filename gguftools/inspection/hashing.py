"""Hashes of tensors and of whole models, listed and checked in the manifest format of llama.cpp.

A line is `ALGORITHM  HEX  FILE:TENSOR`, or `ALGORITHM  HEX  FILE` for all tensors' data in file order. Metadata and
padding are not part of it, so that renaming a model changes nothing.
"""

import codecs
import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from quants.arguments import PathLike, as_texts
from quants.errors import FileError, OptionError

from ..files.atomic import Reads, atomic_output, output_path
from ..files.gguf.reader import open_gguf
from ..model import Model, opened_gguf
from ..writing.row_blocks import Progress
from .digests import ESCAPE, CheckReport, Digest, HashReport, Mismatch

ALGORITHMS = ("xxh64", "sha1", "sha256")
KNOWN = (*ALGORITHMS, "uuid")
UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "en.wikipedia.org/wiki/Llama.cpp")
WORTH_A_THREAD = 1 << 16  # bytes
CHUNK = 1 << 24
ESCAPED = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5})")
LINE = re.compile(r"(\w+)\s+([0-9A-Fa-f-]+) [ *](.+)")


def hash(
    source: PathLike | Model,
    algorithms: Iterable[str] = ("xxh64",),
    *,
    tensors: bool = True,
    progress: Progress | None = None,
) -> HashReport:
    """Hashes of each tensor (unless tensors=False), then of all, by each of the algorithms: xxh64, sha1, sha256, uuid.

    uuid is of the whole only: version 5, in the name space of llama.cpp. Of a split set, any shard may be named; the
    hashes are those of the merged file. A Model's tensors are hashed as they are stored.
    progress(bytes done, of how many, tensor).
    Raises FileError, also for a file that is changed meanwhile, and OptionError for an unknown algorithm.
    """
    wanted = _known(algorithms)
    model = opened_gguf(source)
    file = str(source.path if isinstance(source, Model) else source)
    total, done = model.nbytes, 0
    whole = {name: _start(name) for name in wanted}
    found: list[Digest] = []
    with ThreadPoolExecutor(min(2 * len(wanted), os.cpu_count() or 1)) as pool:
        for tensor in model.streamed().values():
            own = {name: _start(name) for name in wanted if name != "uuid"} if tensors else {}
            step = max(1, CHUNK // max(1, tensor.row_bytes))
            for start in range(0, tensor.rows, step):
                data = tensor.raw(start, min(start + step, tensor.rows)).reshape(-1).data
                spread: Any = pool.map if len(data) >= WORTH_A_THREAD else map
                list(spread(lambda hasher, data=data: hasher.update(data), (*own.values(), *whole.values())))
                done += len(data)
                if progress is not None:
                    progress(done, total, tensor.name)
            found += [Digest(name, hasher.hexdigest(), file, tensor.name) for name, hasher in own.items()]
    model.origin.reads.check_unchanged()
    found += [Digest(name, _finish(name, hasher), file) for name, hasher in whole.items()]
    return HashReport(Path(file), tuple(found))


def _known(algorithms: Iterable[str]) -> list[str]:
    given = set(as_texts(algorithms, "algorithms"))
    if unknown := given.difference(KNOWN):
        raise OptionError(f"there is no algorithm {min(unknown)!r}", hint=f"they are {', '.join(KNOWN)}")
    return [name for name in KNOWN if name in given]


def _start(algorithm: str) -> Any:
    if algorithm == "xxh64":
        return xxhash.xxh64()
    if algorithm == "uuid":
        return hashlib.sha1(UUID_NAMESPACE.bytes)
    return hashlib.new(algorithm)


def _finish(algorithm: str, hasher: Any) -> str:
    if algorithm != "uuid":
        return str(hasher.hexdigest())
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
        if match is None or match[1] not in KNOWN:
            known = ", ".join(KNOWN)
            raise FileError(f"{path}, line {number} is not ALGORITHM  HEX  NAME with one of {known}: {line[:60]!r}")
        name = ESCAPED.sub(_unescaped, match[3]) if line.startswith(ESCAPE) else match[3]
        rows.append((match[1], match[2].lower(), name))
    names = {name for _, _, name in rows}
    files = {start for name in names for start in _before_colons(name) if start in names}
    return [Digest(algorithm, value, *_parts(name, files)) for algorithm, value, name in rows]


def _unescaped(match: re.Match[str]) -> str:
    return codecs.decode(match[0], "unicode_escape")


def _parts(name: str, files: set[str]) -> tuple[str, str | None]:
    """File and tensor. Files that have a line of their own tell where the name of a file ends; else the last colon."""
    if name in files or ":" not in name:
        return name, None
    file = next((start for start in _before_colons(name) if start in files), name.rpartition(":")[0])
    return file, name[len(file) + 1 :]


def _before_colons(name: str) -> Iterator[str]:
    """What may be the file's name, the longest first."""
    return (name[:at] for at in range(len(name) - 1, -1, -1) if name[at] == ":")


def check_file(path: PathLike, manifest: PathLike, progress: Progress | None = None) -> CheckReport:
    """Compare a file with a manifest: with its lines for a file of this name, or with all if they are for one file.

    Raises FileError where the manifest has nothing for the file.
    """
    lines = _lines_for(Path(path), read_manifest(manifest), manifest)
    has_tensors = any(line.tensor is not None for line in lines)
    found = {
        (digest.algorithm, digest.tensor): digest.hex
        for digest in hash(
            path, {line.algorithm for line in lines}, tensors=has_tensors, progress=progress
        ).digests
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
