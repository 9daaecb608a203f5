"""Read and write manifests: what decided the bytes of an output, with digests of all inputs and outputs.

NAME.gguf.manifest.json    next to the output, or next to the first shard of a set

One JSON object; `docs/provenance.md` describes each key. It contains no local folders, times or users, so that the same
work gives the same manifest. A manifest comes from strangers: every value is checked before it is used.
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
MAX_BYTES = 64 << 20  # bytes of a manifest: that of a hundred thousand tensors has half of them
MAX_FILE = 1 << 60
MAX_NAME = 255
DIGEST = re.compile(r"[0-9a-f]{64}")
PLAIN_NAME = re.compile(r"[^/\x00]{1,255}")
MAX_TENSORS, MAX_FILES = 1 << 20, 1 << 16
NOT_AS_WRITTEN = "it is not as it was written"
SOURCE_TYPES = ("gguf", "checkpoint", "hub", "remote")


def manifest_path(output: Path) -> Path:
    """Return the path of an output's manifest; of a split set, that of its first shard."""
    return output.with_name(output.name + MANIFEST)


def public_name(source: PathLike) -> str:
    """Return a source's name in a manifest: without local folders and credentials."""
    path = located(source)
    if not isinstance(path, StorePath):
        return path.resolve().name or "model"
    parts = urlsplit(str(path))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.partition("@")[0], "", ""))


@dataclass(frozen=True)
class FileRecord:
    """Record a file: name, bytes, SHA-256 in hex; None if it was not read whole and is not known."""

    name: str
    bytes: int
    sha256: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class TensorRecord:
    """Record a stored tensor. file: number of its file; offset: of its first byte from the file's start.

    feedback: it was encoded on calibration texts.
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
        plain = {**vars(self), "shape": list(self.shape)}
        return plain if self.feedback else {name: value for name, value in plain.items() if name != "feedback"}


@dataclass(frozen=True)
class SourceRecord:
    """Record the source of tensors. kind: one of SOURCE_TYPES; commit: of a repository on the hub."""

    kind: str
    name: str
    files: tuple[FileRecord, ...] = ()
    commit: str | None = None

    def as_dict(self) -> dict[str, Any]:
        files = [file.as_dict() for file in self.files]
        return {"kind": self.kind, "name": self.name, "commit": self.commit, "files": files}


@dataclass(frozen=True)
class MatrixRecord:
    """Record an importance matrix: its file, None if it was measured in the run; values: SHA-256 of its entries."""

    file: FileRecord | None
    values: str

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file.as_dict() if self.file else None, "values": self.values}


@dataclass(frozen=True)
class Manifest:
    """Record what decided the bytes of an output.

    builder: versions of programs by name. encoders: SHA-256 of the source text of each format's encoder; conversion: of
    the code that converts checkpoints, None for a GGUF source. parameters: arguments that decide bytes, see
    `parameters`. texts: on which weights were encoded.
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
        """Return the content of the file."""
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
        """Return the file's text: a line for each tensor."""
        plain = self.as_dict()
        tensors = ",\n  ".join(json.dumps(tensor) for tensor in plain.pop("tensors"))
        head = json.dumps(plain, indent=1).removesuffix("\n}")
        return f'{head},\n "tensors": [\n  {tensors}\n ]\n}}\n'


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises FileError for anything else, naming the fault."""
    return _Reader(f"{path}").manifest(read_object(path, "manifest"))


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object of at most MAX_BYTES bytes. Raises FileError; what: the expected file, for messages."""
    if isinstance(path, StorePath):
        return _stored_object(path, what)
    try:
        if not path.is_file():
            hint = "quantize and convert write one with `manifest`" if what == "manifest" else None
            raise FileError(f"there is no {what} {path}", hint)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise FileError(f"{path} is no {what}: it has {size:,} bytes, {MAX_BYTES:,} are the most")
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    return _parsed(path, data, what)


def _stored_object(path: StorePath, what: str) -> dict[str, Any]:
    """Read the same from a store."""
    from ..io.stores.store import open_object

    stored = open_object(path)
    if stored.size > MAX_BYTES:
        raise FileError(f"{path} is no {what}: it has {stored.size:,} bytes, {MAX_BYTES:,} are the most")
    return _parsed(path, stored.fetch(0, stored.size).tobytes(), what)


def _parsed(path: Path, data: bytes, what: str) -> dict[str, Any]:
    try:
        content = parse_json(data, unique=True)
    except ValueError as error:
        raise FileError(f"{path} is no {what}: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise FileError(f"{path} is no {what}: it holds no JSON object")
    return content


def is_plain(name: str) -> bool:
    """Return True for the name of a file in a folder that leads nowhere else."""
    return bool(PLAIN_NAME.fullmatch(name)) and name not in (".", "..")


class _Reader:
    """Read values of a JSON object, each of its required type. what: the file, for messages."""

    def __init__(self, what: str) -> None:
        self.what = what

    def error(self, where: str, value: Any, wanted: str) -> FileError:
        problem = f"{self.what}: {where} is {_shown(value)}; {wanted} was expected"
        return FileError(problem, NOT_AS_WRITTEN)

    def manifest(self, content: dict[str, Any]) -> Manifest:
        if content.get("schema") != SCHEMA:
            raise self.error("schema", content.get("schema"), repr(SCHEMA))
        files = tuple(self.file(each, f"files[{i}]", True) for i, each in self.items(content, "files", MAX_FILES))
        if not files or len({file.name for file in files}) < len(files):
            raise self.error("files", [file.name for file in files], "one name or more, each once,")
        tensors = self.tensors(content, files)
        conversion = content.get("conversion")
        return Manifest(
            self.names(content, "builder"),
            {name: self.digest(each, f"encoders.{name}") for name, each in self.names(content, "encoders").items()},
            None if conversion is None else self.digest(conversion, "conversion"),
            self.source(content),
            self.object(content, "parameters"),
            files,
            tensors,
            self.matrix(content.get("imatrix")),
            tuple(self.file(each, f"texts[{i}]") for i, each in self.items(content, "texts", MAX_FILES)),
        )

    def source(self, content: dict[str, Any]) -> SourceRecord:
        source = self.object(content, "source")
        source_type, commit = source.get("kind"), source.get("commit")
        if source_type not in SOURCE_TYPES:
            raise self.error("source.kind", source_type, f"one of {', '.join(SOURCE_TYPES)}")
        name = self.text(source.get("name"), "source.name")
        if source_type in ("gguf", "checkpoint"):
            name = self.plain(name, "source.name")
        files = self.items(source, "files", MAX_FILES, "source.files")
        return SourceRecord(
            source_type,
            name,
            tuple(self.file(each, f"source.files[{i}]", folder=True) for i, each in files),
            None if commit is None else self.text(commit, "source.commit"),
        )

    def matrix(self, value: Any) -> MatrixRecord | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error("imatrix", value, "an object or null")
        file = value.get("file")
        record = None if file is None else self.file(file, "imatrix.file")
        return MatrixRecord(record, self.digest(value.get("values"), "imatrix.values"))

    def tensors(self, content: dict[str, Any], files: Sequence[FileRecord]) -> tuple[TensorRecord, ...]:
        tensors: dict[str, TensorRecord] = {}
        ends: dict[int, list[tuple[int, int, str]]] = {}
        for i, each in self.items(content, "tensors", MAX_TENSORS):
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

    def tensor(self, value: Any, where: str, files: Sequence[FileRecord]) -> TensorRecord:
        if not isinstance(value, dict):
            raise self.error(where, value, "an object")
        name = self.text(value.get("name"), f"{where}.name", 1 << 16)
        number = self.count(value.get("file"), f"{where}.file", len(files) - 1)
        size = self.count(value.get("bytes"), f"{where}.bytes")
        offset = self.count(value.get("offset"), f"{where}.offset")
        if offset + size > files[number].bytes:
            file = files[number]
            problem = f"{self.what}: {where} ends at byte {offset + size}, {file.name} has {file.bytes}"
            raise FileError(problem, NOT_AS_WRITTEN)
        shape = value.get("shape")
        if not isinstance(shape, list) or len(shape) > 8:
            raise self.error(f"{where}.shape", shape, "a list of at most 8 numbers")
        sizes = tuple(self.count(each, f"{where}.shape") for each in shape)
        form = self.text(value.get("format"), f"{where}.format", 40)
        if math.prod(sizes) > MAX_FILE:
            raise self.error(f"{where}.shape", shape, "the shape of a tensor that a file can hold")
        digest = self.digest(value.get("sha256"), f"{where}.sha256")
        return TensorRecord(name, number, offset, size, form, sizes, digest, value.get("feedback") is True)

    def file(self, value: Any, where: str, must: bool = False, folder: bool = False) -> FileRecord:
        """Read a file's record. must: it has a digest. folder: the name may include one folder."""
        if not isinstance(value, dict):
            raise self.error(where, value, "an object")
        name = self.text(value.get("name"), f"{where}.name", 2 * MAX_NAME)
        parts = name.split("/", 1) if folder else [name]
        for part in parts:
            self.plain(part, f"{where}.name")
        digest = value.get("sha256")
        known = None if digest is None and not must else self.digest(digest, f"{where}.sha256")
        return FileRecord(name, self.count(value.get("bytes"), f"{where}.bytes"), known)

    def items(self, content: dict[str, Any], key: str, limit: int, where: str = "") -> Iterable[tuple[int, Any]]:
        several = content.get(key)
        if not isinstance(several, list) or len(several) > limit:
            raise self.error(where or key, several, f"a list of at most {limit:,} items")
        return enumerate(several)

    def object(self, content: dict[str, Any], key: str) -> dict[str, Any]:
        inner = content.get(key)
        if not isinstance(inner, dict):
            raise self.error(key, inner, "an object")
        return inner

    def names(self, content: dict[str, Any], key: str) -> dict[str, str]:
        inner = self.object(content, key)
        return {name: self.text(each, f"{key}.{name[:40]}") for name, each in inner.items()}

    def text(self, value: Any, where: str, limit: int = 1000) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= limit:
            raise self.error(where, value, f"a text of 1 to {limit:,} letters")
        return value

    def plain(self, name: str, where: str) -> str:
        if not is_plain(name):
            raise self.error(where, name, "the plain name of a file")
        return name

    def count(self, value: Any, where: str, limit: int = MAX_FILE) -> int:
        if type(value) is not int or not 0 <= value <= limit:
            raise self.error(where, value, f"a whole number from 0 to {limit}")
        return value

    def digest(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not DIGEST.fullmatch(value):
            raise self.error(where, value, "64 hex digits")
        return value


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    return "missing" if value is None else quote(value) if isinstance(value, str) else str(value)[:40]
