"""Hash tensors and whole models; write and check manifests in llama.cpp's format.

A line is `ALGORITHM  HEX  FILE:TENSOR`, or `ALGORITHM  HEX  FILE` for all tensors' data in file order. Metadata and
padding are not part of it, so that renaming a model changes nothing.
"""

import codecs
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from archs.bounded_files import HASHES, read_text
from quants.arguments import PathLike, as_texts
from quants.errors import FileError, OptionError
from quants.threads import started_pool

from ..io.atomic import InputFiles, atomic_output, output_path
from ..io.gguf.reader import open_gguf
from ..io.stores.path import located
from ..models.contents import streamed_tensors
from ..models.model import Model, opened_gguf
from ..writing.row_blocks import Progress
from .digests import ESCAPE, Digest, HashReport, ManifestCheck, Mismatch

UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "en.wikipedia.org/wiki/Llama.cpp")
HASHERS: dict[str, Callable[[], Any]] = {
    "xxh64": xxhash.xxh64,
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
    "uuid": lambda: hashlib.sha1(UUID_NAMESPACE.bytes),
}
MIN_PARALLEL_BYTES = 1 << 16  # bytes
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
    """Return hashes of each tensor (unless tensors=False), then of the whole model.

        algorithms: of xxh64, sha1, sha256, uuid; uuid is of the whole model only, version 5 in llama.cpp's name space.
    source: of a split set, any shard; the hashes are those of the merged file. A Model's tensors are hashed as they are
    stored. progress(bytes done, of how many, tensor). Raises FileError, also for a file that is changed while it is
    read, and OptionError for an unknown algorithm.
    """
    given = set(as_texts(algorithms, "algorithms"))
    if unknown := given.difference(HASHERS):
        raise OptionError(f"there is no algorithm {min(unknown)!r}", hint=f"they are {', '.join(HASHERS)}")
    wanted = [name for name in HASHERS if name in given]
    model = opened_gguf(source)
    file = str(source.path if isinstance(source, Model) else source)
    total, done = model.nbytes, 0
    whole = {name: HASHERS[name]() for name in wanted}
    digests: list[Digest] = []
    with started_pool(min(2 * len(wanted), os.cpu_count() or 1)) as pool:
        for tensor in streamed_tensors(model).values():
            own = {name: HASHERS[name]() for name in wanted if name != "uuid"} if tensors else {}
            step = max(1, CHUNK // max(1, tensor.row_bytes))
            for start in range(0, tensor.rows, step):
                data = tensor.raw(start, min(start + step, tensor.rows)).reshape(-1).data
                spread: Any = pool.map if len(data) >= MIN_PARALLEL_BYTES else map
                list(spread(lambda hasher, data=data: hasher.update(data), (*own.values(), *whole.values())))
                done += len(data)
                if progress is not None:
                    progress(done, total, tensor.name)
            if tensor.tail is not None:
                for hasher in (*own.values(), *whole.values()):
                    hasher.update(np.ascontiguousarray(tensor.tail).data)
            digests += [Digest(name, hasher.hexdigest(), file, tensor.name) for name, hasher in own.items()]
    model.origin.reads.check_unchanged()
    for name, hasher in whole.items():
        value = hasher.hexdigest()
        digests.append(Digest(name, str(uuid.UUID(hex=value[:32], version=5)) if name == "uuid" else value, file))
    return HashReport(located(file), tuple(digests))


def write_manifest(
    path: PathLike, digests: Iterable[Digest], overwrite: bool = False, reads: Iterable[PathLike] = ()
) -> list[Digest]:
    """Write a manifest and return its digests, which may be computed while it is open.

    reads: the hashed files, which must not be overwritten. Raises FileError, OptionError.
    """
    read = InputFiles(tuple(shard for each in reads for shard in open_gguf(located(each)).shards))
    with atomic_output(output_path(path), "w", overwrite, read) as file:
        written = list(digests)
        file.writelines(f"{digest.line()}\n" for digest in written)
    return written


def read_manifest(path: PathLike) -> list[Digest]:
    """Return the digests of a manifest. Raises FileError for an invalid line."""
    lines = read_text(Path(path), HASHES).replace("\r\n", "\n").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = LINE.fullmatch(line.removeprefix(ESCAPE).rstrip())
        if match is None or match[1] not in HASHERS:
            known = ", ".join(HASHERS)
            raise FileError(f"{path}, line {number} is not ALGORITHM  HEX  NAME with one of {known}: {line[:60]!r}")
        escaped = line.startswith(ESCAPE)
        name = ESCAPED.sub(lambda m: codecs.decode(m[0], "unicode_escape"), match[3]) if escaped else match[3]
        rows.append((match[1], match[2].lower(), name))
    files = _files({name for _, _, name in rows})
    own_lines = set(files.values())
    digests = []
    for algorithm, value, name in rows:
        has_tensor = ":" in name and name not in own_lines
        file = files.get(name, name.rpartition(":")[0]) if has_tensor else name
        digests.append(Digest(algorithm, value, file, name[len(file) + 1 :] if has_tensor else None))
    return digests


def _files(names: Iterable[str]) -> dict[str, str]:
    """Return the file of each FILE:TENSOR whose file has its own line: the longest match, as names may have colons."""
    files: dict[str, str] = {}
    begun: list[str] = []  # names that are prefixes of the current one
    for name in sorted(names, key=lambda name: f"{name}:"):
        while begun and not name.startswith(f"{begun[-1]}:"):
            begun.pop()
        if begun:
            files[name] = begun[-1]
        begun.append(name)
    return files


def check_file(path: PathLike, manifest: PathLike, progress: Progress | None = None) -> ManifestCheck:
    """Compare a file with a manifest: with the lines for its name, or with all lines if they are for one file.

    Raises FileError if the manifest has no line for the file.
    """
    lines, own = read_manifest(manifest), Path(path).name
    files = {line.file for line in lines}
    if len(files) != 1:
        lines = [line for line in lines if Path(line.file).name == own]
    if not lines:
        some = ", ".join(sorted(files)[:3])
        raise FileError(f"{manifest} has no hashes of {own}" + (f"; it has those of {some}" if some else ""))
    has_tensors = any(line.tensor is not None for line in lines)
    report = hash(path, {line.algorithm for line in lines}, tensors=has_tensors, progress=progress)
    expected, actual = (
        {(line.algorithm, line.tensor): line.hex for line in digests} for digests in (lines, report.digests)
    )
    wrong = [
        Mismatch(key[1] or str(path), key[0], expected.get(key), actual.get(key))
        for key in dict.fromkeys((*expected, *actual))
        if expected.get(key) != actual.get(key) and (key[1] is not None or key in expected)
    ]
    return ManifestCheck(str(path), len(lines), wrong)
