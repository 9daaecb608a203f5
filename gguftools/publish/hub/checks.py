"""Check a folder before it is uploaded: what is ignored, and whether its files are what they claim to be."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from archs.bounded_files import HASHES, Limit, read_text
from quants.errors import FileError

from ...inspection.validation import validate
from ...inspection.vocabulary_check import ERROR
from ...io.gguf.shards import SHARD_NAME
from ...io.locks import State, state_of
from ...io.naming import few
from ...provenance.hashing import ByteRange, range_digests
from .labels import label_warning
from .selection import gguf_models

CARD, SUMS = "README.md", "SHA256SUMS"
TEMPORARY = (".part", ".partial", ".journal", ".incomplete", ".tmp", ".encoded", ".search", ".replacing", ".replaced")
SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
A_CARD = Limit("a model card", 16 << 20)
MAX_BYTES = 500 * 10**9  # that the hub takes of one file
ADVISED_BYTES = 200 * 10**9
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LocalFile:
    """Describe a file that is uploaded. path: in the repository. state: what it was when its digest was computed."""

    path: str
    local: Path
    size: int
    sha256: str
    state: State

    def check_unchanged(self) -> None:
        """Raise FileError if the file was changed since its digest was computed."""
        if state_of(self.local) != self.state:
            raise FileError(f"{self.local} was changed while it was uploaded", "run it again: what is new is uploaded")


def found_files(folder: Path, exclude: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Return the files of a folder by their paths in a repository, and those that are not uploaded.

    Ignored are hidden files, temporary ones, what is no file, and what a pattern of `exclude` matches. Raises FileError
    for a folder that is none or has nothing to upload.
    """
    if not folder.is_dir():
        what = "is a file; a folder was expected" if folder.exists() else "is missing; a folder was expected"
        raise FileError(f"{folder} {what}", "name a folder with what is to be uploaded")
    files, ignored = dict[str, Path](), list[str]()
    for place, folders, names in os.walk(folder):
        hidden = [name for name in folders if name.startswith(".") or name == "__pycache__"]
        ignored += [f"{Path(place, name).relative_to(folder).as_posix()}/" for name in hidden]
        folders[:] = sorted(set(folders) - set(hidden))
        for name in names:
            local = Path(place, name)
            path = local.relative_to(folder).as_posix()
            if is_ignored(path, exclude) or not local.is_file():
                ignored.append(path)
            else:
                files[path] = local
    if not files:
        raise FileError(f"{folder} has no file to upload" + (f"; {few(ignored)} are ignored" if ignored else ""))
    return dict(sorted(files.items())), sorted(ignored)


def is_ignored(path: str, exclude: Sequence[str]) -> bool:
    """Return True for files that are neither uploaded nor deleted: hidden, temporary, and excluded ones."""
    *_, name = parts = PurePosixPath(path).parts
    is_excluded = any(fnmatchcase(path, each) or fnmatchcase(name, each) for each in exclude)
    return is_excluded or name.endswith(TEMPORARY) or any(part.startswith(".") for part in parts)


def check_folder(files: Mapping[str, Path], no_check: bool) -> list[str]:
    """Check all but digests, and return warnings. no_check: warn of GGUF files that are not sound. Raises FileError."""
    warnings = _check_sizes(files)
    warnings += _check_card(files)
    for path, local in files.items():
        if path.endswith(".gguf") and _is_first(path, files):
            problems = [each for each in validate(local, data=False).problems if each.severity == ERROR]
            if problems:
                what = f"{local} is no sound GGUF file: {problems[0].where}: {problems[0].message}"
                if not no_check:
                    hint = f"`gguftools validate {shlex.quote(str(local))}` has details; `no_check` uploads it anyway"
                    raise FileError(what, hint)
                warnings.append(what)
    warnings += [warning for path in gguf_models(files) if (warning := label_warning(path))]
    if any(path == "preset.ini" for path in files):
        warnings.append("preset.ini in the root hides all models from `llama-server -hf`")
    return warnings


def with_digests(
    folder: Path, files: Mapping[str, Path], progress: Progress | None
) -> tuple[list[LocalFile], list[str]]:
    """Return the files with their digests, and warnings. Raises FileError where SHA256SUMS has another digest."""
    ranges, states = [], {}
    for path, local in files.items():
        states[path] = state_of(local)
        ranges.append(ByteRange(local, 0, _size(local), f"check {path}"))
    digests = range_digests(ranges, progress=progress)
    found = [
        LocalFile(path, each.path, each.end, digest, states[path])
        for path, each, digest in zip(files, ranges, digests, strict=True)
    ]
    return found, _check_sums(folder, found)


def _check_sizes(files: Mapping[str, Path]) -> list[str]:
    warnings = []
    for path, local in files.items():
        if (size := _size(local)) > MAX_BYTES:
            problem = f"{local} has {size:,} bytes; the hub takes {MAX_BYTES:,}"
            raise FileError(problem, f"`gguftools split {local} --split-max-size 50G` makes shards of it")
        if size > ADVISED_BYTES:
            warnings.append(f"{path} has {size:,} bytes; the hub advises less than {ADVISED_BYTES:,}: split it")
    return warnings


def _check_card(files: Mapping[str, Path]) -> list[str]:
    """Check the front matter of README.md as huggingface_hub reads it. Raises FileError."""
    if CARD not in files:
        return [f"there is no {CARD}: the hub's page will have no model card"]
    from huggingface_hub import ModelCard
    from yaml import YAMLError

    text = read_text(files[CARD], A_CARD)
    if not text.startswith("---"):
        return [f"{CARD} has no front matter: the hub knows neither license nor base model"]
    try:
        ModelCard(text)
    except (ValueError, TypeError, YAMLError) as error:
        line = " ".join(str(error).split())
        raise FileError(f"{files[CARD]}: its front matter is not valid: {line:.200}", "correct its YAML") from error
    return []


def _is_first(path: str, files: Mapping[str, Path]) -> bool:
    """Return True unless the file is a shard whose first one is uploaded, too, and checked for all."""
    match = SHARD_NAME.fullmatch(path)
    return (
        match is None or int(match["number"]) == 1 or f"{match['prefix']}-00001-of-{match['count']}.gguf" not in files
    )


def _check_sums(folder: Path, files: Sequence[LocalFile]) -> list[str]:
    """Compare digests with SHA256SUMS; return warnings. Raises FileError."""
    digests = {each.path: each.sha256 for each in files}
    if SUMS not in digests:
        return []
    listed = {}
    for number, line in enumerate(read_text(folder / SUMS, HASHES).splitlines(), 1):
        if not (match := SUM.fullmatch(line)):
            raise FileError(f"{folder / SUMS}, line {number} is not SHA256  NAME: {line[:60]!r}", "make the file again")
        path = PurePosixPath(match[2]).as_posix()
        listed[path] = match[1].lower()
        if path not in digests:
            raise FileError(f"{folder / SUMS} lists {path}, which is not uploaded", "make the file again")
        if digests[path] != listed[path]:
            what = f"{folder / path} has the SHA-256 {digests[path][:16]}…, {SUMS} has {listed[path][:16]}…"
            raise FileError(what, f"the file was changed or damaged; if it is right, make {SUMS} again")
    missing = [path for path in digests if path.endswith(".gguf") and path not in listed]
    return [f"{SUMS} does not list {few(missing)}"] if missing else []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
