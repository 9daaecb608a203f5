"""Note which parts of a release are done, so that a second run does only what is missing.

FOLDER/.release/done.json has for each part a digest of all that decides its files, and their sizes, times and SHA-256.
It is replaced as a whole after each part. A part whose files were changed or removed since is made again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archs.small_files import read_json_object
from quants.errors import FileError

from ...io.atomic import atomic_output
from ...io.locks import lock, open_to_lock
from ...provenance.hashing import file_digest

WORK, DONE, LOCK = ".release", "done.json", "lock"


@dataclass
class Journal:
    """The parts that are done. folder: of the release; parts: by name, {"key", "files", "facts"}."""

    folder: Path
    parts: dict[str, dict[str, Any]]

    @property
    def work(self) -> Path:
        """Return the folder for what is not published."""
        return self.folder / WORK

    def is_done(self, part: str, key: str) -> bool:
        """Return whether a part was made from the same things, and its files are as they were written."""
        entry = self.parts.get(part)
        if entry is None or entry["key"] != key:
            return False
        return all(_stamp(self.folder / name) == stamp[:2] for name, stamp in entry["files"].items())

    def note(self, part: str, key: str, files: Iterable[Path], facts: Mapping[str, Any] | None = None) -> None:
        """Note that a part is done. files: that it wrote; facts: plain data for later parts."""
        stamps = {}
        for path in files:
            before = _stamp(path)
            stamps[path.relative_to(self.folder).as_posix()] = [*(before or ()), file_digest(path)]
            if before is None or _stamp(path) != before:
                raise FileError(f"{path} was changed while it was hashed", "run it again")
        self.parts[part] = {"key": key, "files": stamps, "facts": dict(facts or {})}
        with atomic_output(self.work / DONE, "w", True) as file:
            json.dump({"gguftools": 1, "parts": self.parts}, file, indent=1)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file that the parts wrote, by name in the folder."""
        return {name: stamp[2] for entry in self.parts.values() for name, stamp in entry["files"].items()}


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Lock a folder for one release; a killed one leaves no lock. Raises FileError if another is at work there."""
    path = folder / WORK / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with suppress(FileError), atomic_output(path):
            pass
    fd = open_to_lock(path)
    try:
        if not lock(fd):
            raise FileError(f"another release is at work in {folder}", "wait until it is done, or name another output")
        yield
    finally:
        os.close(fd)


def open_journal(folder: Path) -> Journal:
    """Return the journal of a folder; an empty one if there is none, or none that can be read."""
    path = folder / WORK / DONE
    (folder / WORK).mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        return Journal(folder, {})
    try:
        parts = read_json_object(path).get("parts", {})
        valid = {name: each for name, each in parts.items() if {"key", "files", "facts"} <= each.keys()}
    except (FileError, AttributeError, TypeError):
        return Journal(folder, {})
    return Journal(folder, valid)


def key_of(*parts: Any) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _stamp(path: Path) -> list[int] | None:
    """Return the size and time of change of a file; None if it is not there."""
    try:
        info = path.stat()
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns]
