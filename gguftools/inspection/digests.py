"""Reports of hashing. Apart from `hashing`, whose function `hash` would shadow Python's in these classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..metadata.visible import visible
from ..writing.report import Report

ESCAPE = "\\"


@dataclass(frozen=True)
class Digest:
    """A hash of one tensor, or (tensor None) of all. file: the name as given."""

    algorithm: str
    hex: str
    file: str
    tensor: str | None = None

    def line(self) -> str:
        """Return the line of a manifest. As in coreutils, a leading `\\` marks a name with escapes."""
        name = self.file if self.tensor is None else f"{self.file}:{self.tensor}"
        front, name = ("", name) if visible(name) == name else (ESCAPE, visible(name.replace(ESCAPE, 2 * ESCAPE)))
        return f"{front}{self.algorithm:<8}  {self.hex}  {name}"

    def as_dict(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm, "hash": self.hex, "file": self.file, "tensor": self.tensor}


@dataclass(frozen=True)
class HashReport:
    """The hashes of a file. digests: of each tensor in file order, then of all together, by each algorithm."""

    path: Path
    digests: tuple[Digest, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"file": str(self.path), "hashes": [digest.as_dict() for digest in self.digests]}


@dataclass(frozen=True)
class Mismatch(Report):
    """A hash that differs from a manifest: expected or found is None if a line or a tensor is missing."""

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


@dataclass(frozen=True)
class ManifestCheck(Report):
    """The number of lines of a manifest that were checked for a file, and the mismatches."""

    file: str
    checked: int
    mismatches: list[Mismatch]
