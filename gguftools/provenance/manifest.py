"""Manifests: what decided the bytes of an output, and digests of all that it was made of and is.

    NAME.gguf.manifest.json    beside the output, or beside the first shard of a set

One JSON object; `docs/provenance.md` describes each key. Nothing in it tells folders of a machine, times or users, so
that the same work gives the same manifest. A manifest comes from strangers: every value is checked before it is used.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from archs.small_files import parse_json
from quants.arguments import PathLike
from quants.errors import FileError
from quants.spelling import quote

from ..io.atomic import MANIFEST, MANIFEST_SCHEMA
from ..io.stores.path import StorePath, located

SCHEMA = f"{MANIFEST_SCHEMA}1"
LARGEST = 64 << 20  # bytes of a manifest: that of a hundred thousand tensors has half of them
LARGEST_FILE = 1 << 60
MOST_NAME = 255
DIGEST = re.compile(r"[0-9a-f]{64}")
PLAIN_NAME = re.compile(r"[^/\x00]{1,255}")
MOST_TENSORS, MOST_FILES = 1 << 20, 1 << 16
NOT_AS_WRITTEN = "it is not as it was written"
KINDS = ("gguf", "checkpoint", "hub", "remote")


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output is, of a split set that of its first shard."""
    return output.with_name(output.name + MANIFEST)


def public_name(source: PathLike) -> str:
    """What a source is called in a manifest: without folders of this machine, and without what opens a store."""
    path = located(source)
    if not isinstance(path, StorePath):
        return path.resolve().name or "model"
    parts = urlsplit(str(path))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.partition("@")[0], "", ""))


@dataclass(frozen=True)
class FileRecord:
    """A file: name, bytes, SHA-256 as hex digits; None where it was not read whole and nobody says."""

    name: str
    bytes: int
    sha256: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.bytes, "sha256": self.sha256}


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as it is stored. file: number of the file that has it; offset: of its first byte from the file's start.

    feedback: whether it was encoded by calibration texts.
    """

    name: str
    file: int
    offset: int
    bytes: int
    format: str
    shape: tuple[int, ...]
    sha256: str
    feedback: bool = False

    def as_dict(self) -> dict[str, Any]:
        fed = {"feedback": True} if self.feedback else {}
        return {
            "name": self.name,
            "file": self.file,
            "offset": self.offset,
            "bytes": self.bytes,
            "format": self.format,
            "shape": list(self.shape),
            "sha256": self.sha256,
            **fed,
        }


@dataclass(frozen=True)
class SourceRecord:
    """What tensors were read from. kind: one of KINDS; commit: of a repository on the hub."""

    kind: str
    name: str
    files: tuple[FileRecord, ...] = ()
    commit: str | None = None

    def as_dict(self) -> dict[str, Any]:
        files = [file.as_dict() for file in self.files]
        return {"kind": self.kind, "name": self.name, "commit": self.commit, "files": files}


@dataclass(frozen=True)
class MatrixRecord:
    """An importance matrix: its file, None where it was measured on the way; values: SHA-256 of its entries."""

    file: FileRecord | None
    values: str

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file.as_dict() if self.file else None, "values": self.values}


@dataclass(frozen=True)
class Manifest:
    """What decided the bytes of an output.

    builder: versions of programs by name. encoders: SHA-256 of the source text of each format's encoder; conversion: of
    what makes a checkpoint's tensors a GGUF file's, None where the source was one. parameters: arguments that decide
    bytes, see `parameters`. texts: that weights were encoded by.
    """

    builder: Mapping[str, str]
    encoders: Mapping[str, str]
    conversion: str | None
    source: SourceRecord
    parameters: Mapping[str, Any]
    files: tuple[FileRecord, ...]
    tensors: tuple[TensorRecord, ...]
    imatrix: MatrixRecord | None = None
    texts: tuple[FileRecord, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "schema": SCHEMA,
            "builder": dict(self.builder),
            "encoders": dict(self.encoders),
            "conversion": self.conversion,
            "source": self.source.as_dict(),
            "parameters": dict(self.parameters),
            "imatrix": self.imatrix.as_dict() if self.imatrix else None,
            "texts": [text.as_dict() for text in self.texts],
            "files": [file.as_dict() for file in self.files],
            "tensors": [tensor.as_dict() for tensor in self.tensors],
        }

    def text(self) -> str:
        """The file's text: a line for each tensor."""
        plain = self.as_dict()
        tensors = ",\n  ".join(json.dumps(tensor) for tensor in plain.pop("tensors"))
        head = json.dumps(plain, indent=1).removesuffix("\n}")
        return f'{head},\n "tensors": [\n  {tensors}\n ]\n}}\n'


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file. Raises FileError for anything else, naming what is wrong."""
    return _Reader(f"{path}").manifest(read_object(path, "manifest"))


def read_object(path: Path, kind: str) -> dict[str, Any]:
    """A JSON object of at most LARGEST bytes. Raises FileError; kind: what it should be."""
    if isinstance(path, StorePath):
        return _stored_object(path, kind)
    try:
        if not path.is_file():
            hint = "quantize and convert write one with `manifest`" if kind == "manifest" else None
            raise FileError(f"there is no {kind} {path}", hint)
        size = path.stat().st_size
        if size > LARGEST:
            raise FileError(f"{path} is no {kind}: it has {size:,} bytes, {LARGEST:,} are the most")
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    return _parsed(path, data, kind)


def _stored_object(path: StorePath, kind: str) -> dict[str, Any]:
    """The same from a store."""
    from ..io.stores.store import open_object

    found = open_object(path)
    if found.size > LARGEST:
        raise FileError(f"{path} is no {kind}: it has {found.size:,} bytes, {LARGEST:,} are the most")
    return _parsed(path, found.fetch(0, found.size).tobytes(), kind)


def _parsed(path: Path, data: bytes, kind: str) -> dict[str, Any]:
    try:
        found = parse_json(data, unique=True)
    except ValueError as error:
        raise FileError(f"{path} is no {kind}: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise FileError(f"{path} is no {kind}: it holds no JSON object")
    return found


def is_plain(name: str) -> bool:
    """Whether a name is one of a file in a folder, and leads nowhere else."""
    return bool(PLAIN_NAME.fullmatch(name)) and name not in (".", "..")


class _Reader:
    """Values out of a JSON object, each of the type that it must have. what: the file, for messages."""

    def __init__(self, what: str) -> None:
        self.what = what

    def error(self, where: str, found: Any, wanted: str) -> FileError:
        problem = f"{self.what}: {where} is {_shown(found)}; {wanted} was expected"
        return FileError(problem, NOT_AS_WRITTEN)

    def manifest(self, found: dict[str, Any]) -> Manifest:
        if found.get("schema") != SCHEMA:
            raise self.error("schema", found.get("schema"), repr(SCHEMA))
        files = tuple(self.file(each, f"files[{i}]", True) for i, each in self.items(found, "files", MOST_FILES))
        if not files or len({file.name for file in files}) < len(files):
            raise self.error("files", [file.name for file in files], "one name or more, each once,")
        tensors = self.tensors(found, files)
        conversion = found.get("conversion")
        return Manifest(
            self.names(found, "builder"),
            {name: self.digest(each, f"encoders.{name}") for name, each in self.names(found, "encoders").items()},
            None if conversion is None else self.digest(conversion, "conversion"),
            self.source(found),
            self.object(found, "parameters"),
            files,
            tensors,
            self.matrix(found.get("imatrix")),
            tuple(self.file(each, f"texts[{i}]") for i, each in self.items(found, "texts", MOST_FILES)),
        )

    def source(self, found: dict[str, Any]) -> SourceRecord:
        source = self.object(found, "source")
        kind, commit = source.get("kind"), source.get("commit")
        if kind not in KINDS:
            raise self.error("source.kind", kind, f"one of {', '.join(KINDS)}")
        name = self.text(source.get("name"), "source.name")
        if kind in ("gguf", "checkpoint"):
            name = self.plain(name, "source.name")
        files = self.items(source, "files", MOST_FILES, "source.files")
        return SourceRecord(
            kind,
            name,
            tuple(self.file(each, f"source.files[{i}]", folder=True) for i, each in files),
            None if commit is None else self.text(commit, "source.commit"),
        )

    def matrix(self, found: Any) -> MatrixRecord | None:
        if found is None:
            return None
        if not isinstance(found, dict):
            raise self.error("imatrix", found, "an object or null")
        file = found.get("file")
        record = None if file is None else self.file(file, "imatrix.file")
        return MatrixRecord(record, self.digest(found.get("values"), "imatrix.values"))

    def tensors(self, found: dict[str, Any], files: Sequence[FileRecord]) -> tuple[TensorRecord, ...]:
        tensors: dict[str, TensorRecord] = {}
        ends: dict[int, list[tuple[int, int, str]]] = {}
        for i, each in self.items(found, "tensors", MOST_TENSORS):
            tensor = self.tensor(each, f"tensors[{i}]", files)
            if tensor.name in tensors:
                raise FileError(f"{self.what}: tensors[{i}] is {quote(tensor.name)}, which is there before")
            tensors[tensor.name] = tensor
            ends.setdefault(tensor.file, []).append((tensor.offset, tensor.offset + tensor.bytes, tensor.name))
        for ranges in ends.values():
            ranges.sort()
            for (_, end, one), (begin, _, other) in pairwise(ranges):
                if begin < end:
                    raise FileError(f"{self.what}: tensors {quote(one)} and {quote(other)} share bytes")
        return tuple(tensors.values())

    def tensor(self, found: Any, where: str, files: Sequence[FileRecord]) -> TensorRecord:
        if not isinstance(found, dict):
            raise self.error(where, found, "an object")
        name = self.text(found.get("name"), f"{where}.name", 1 << 16)
        number = self.count(found.get("file"), f"{where}.file", len(files) - 1)
        size = self.count(found.get("bytes"), f"{where}.bytes")
        offset = self.count(found.get("offset"), f"{where}.offset")
        if offset + size > files[number].bytes:
            file = files[number]
            problem = f"{self.what}: {where} ends at byte {offset + size}, {file.name} has {file.bytes}"
            raise FileError(problem, NOT_AS_WRITTEN)
        shape = found.get("shape")
        if not isinstance(shape, list) or len(shape) > 8:
            raise self.error(f"{where}.shape", shape, "a list of at most 8 numbers")
        sizes = tuple(self.count(each, f"{where}.shape") for each in shape)
        form = self.text(found.get("format"), f"{where}.format", 40)
        if math.prod(sizes) > LARGEST_FILE:
            raise self.error(f"{where}.shape", shape, "the shape of a tensor that a file can hold")
        digest = self.digest(found.get("sha256"), f"{where}.sha256")
        return TensorRecord(name, number, offset, size, form, sizes, digest, found.get("feedback") is True)

    def file(self, found: Any, where: str, must: bool = False, folder: bool = False) -> FileRecord:
        """must: its digest is known. folder: the name may have one folder before it."""
        if not isinstance(found, dict):
            raise self.error(where, found, "an object")
        name = self.text(found.get("name"), f"{where}.name", 2 * MOST_NAME)
        parts = name.split("/", 1) if folder else [name]
        for part in parts:
            self.plain(part, f"{where}.name")
        digest = found.get("sha256")
        known = None if digest is None and not must else self.digest(digest, f"{where}.sha256")
        return FileRecord(name, self.count(found.get("bytes"), f"{where}.bytes"), known)

    def items(self, found: dict[str, Any], key: str, most: int, where: str = "") -> Iterable[tuple[int, Any]]:
        several = found.get(key)
        if not isinstance(several, list) or len(several) > most:
            raise self.error(where or key, several, f"a list of at most {most:,} items")
        return enumerate(several)

    def object(self, found: dict[str, Any], key: str) -> dict[str, Any]:
        inner = found.get(key)
        if not isinstance(inner, dict):
            raise self.error(key, inner, "an object")
        return inner

    def names(self, found: dict[str, Any], key: str) -> dict[str, str]:
        inner = self.object(found, key)
        return {name: self.text(each, f"{key}.{name[:40]}") for name, each in inner.items()}

    def text(self, found: Any, where: str, most: int = 1000) -> str:
        if not isinstance(found, str) or not 0 < len(found) <= most:
            raise self.error(where, found, f"a text of 1 to {most:,} letters")
        return found

    def plain(self, name: str, where: str) -> str:
        if not is_plain(name):
            raise self.error(where, name, "the plain name of a file")
        return name

    def count(self, found: Any, where: str, most: int = LARGEST_FILE) -> int:
        if type(found) is not int or not 0 <= found <= most:
            raise self.error(where, found, f"a whole number from 0 to {most}")
        return found

    def digest(self, found: Any, where: str) -> str:
        if not isinstance(found, str) or not DIGEST.fullmatch(found):
            raise self.error(where, found, "64 hex digits")
        return found


def _shown(found: Any) -> str:
    if isinstance(found, (dict, list)):
        return f"{'an object' if isinstance(found, dict) else 'a list'} of {len(found):,}"
    return "missing" if found is None else quote(found) if isinstance(found, str) else str(found)[:40]
