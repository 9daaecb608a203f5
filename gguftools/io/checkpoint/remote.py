"""Open checkpoints without a local copy: on the hub (`hf://ORG/MODEL[@REVISION]`), or in a store's folder.

Small files (configuration, tokenizer, model card, index) are fetched into a temporary folder. Weights are read by
ranges, in blocks that threads share and that are fetched ahead. A repository's revision is pinned to a commit, an
object in a store to its current version, so that all that is read belongs together.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from archs.small_files import recorded_reads
from quants import Tensor
from quants.arguments import PathLike
from quants.errors import FileError, GgufToolsError

from ..naming import hint_for_absent
from ..stores.block_cache import BlockCache
from ..stores.path import StorePath, located
from ..stores.retries import Bytes
from ..stores.store import Objects, is_pinned, listing, state_of_object
from .folder import PLAIN_NAME, Checkpoint, open_checkpoint
from .safetensors import data_edges, header_size, metadata_of, tensors_of

SMALL_SUFFIXES = (".json", ".jinja", ".md", ".model", ".tiktoken", ".txt")
SMALL_FILE = 256 << 20  # more than any tokenizer has
MAX_SMALL_FILES = 1 << 30  # bytes of all together
MAX_FILES = 100_000
TEMPLATES = "additional_chat_templates"

FIRST_READ = 256 << 10  # of a file: its header, unless that is a long one


class Place(Protocol):
    """Read the files of a checkpoint. name: as the user wrote it. sizes: bytes of the files listed so far."""

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> dict[str, int]: ...
    @property
    def folders(self) -> tuple[str, str]: ...
    @property
    def identity(self) -> tuple[str, str]: ...
    def listing(self, folder: str = "") -> dict[str, int | None]: ...
    def fetch(self, file: str, begin: int, end: int) -> Bytes: ...
    def hint_for_pickle(self) -> str: ...


@dataclass
class StoredFolder:
    """Read a folder of objects in a store, each at one version."""

    path: StorePath
    sizes: dict[str, int] = field(default_factory=dict)
    objects: Objects = field(default_factory=Objects)

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def folders(self) -> tuple[str, str]:
        """Return the names of the folder's parent and of the folder."""
        parts = [part for part in self.path.parts[1:] if PLAIN_NAME.fullmatch(part)]
        return (*["store", *parts][-2:],)  # type: ignore[return-value]

    @property
    def identity(self) -> tuple[str, str]:
        weights = {name: each.version for name, each in self.objects.opened.items() if name.endswith(".safetensors")}
        versions = sorted(weights.items())
        return self.name, hashlib.sha256(repr(versions).encode()).hexdigest()

    def listing(self, folder: str = "") -> dict[str, int | None]:
        """List a folder: file name → bytes, folder name → None.

        Raises FileError for entries that no checkpoint can have.
        """
        sizes: dict[str, int | None] = {}
        entries = listing(self.path / folder if folder else self.path)
        if len(entries) > MAX_FILES:
            raise FileError(f"{self.name} has {len(entries):,} files, which is no checkpoint's folder")
        for name, size in entries:
            if not PLAIN_NAME.fullmatch(name) or name in (".", "..") or not name.isprintable():
                raise FileError(f"{self.name} has a file of the name {name!r:.100}")
            sizes[name] = size
            if size is not None:
                self.sizes[f"{folder}/{name}" if folder else name] = size
        if not sizes:
            raise FileError(f"{self.name} is empty or missing", hint="check the name; a GGUF file's ends in .gguf")
        return sizes

    def fetch(self, file: str, begin: int, end: int) -> Bytes:
        """Return bytes begin … end of a file, uint8. Raises FileError, also if its size is not the listed one."""
        stored = self.objects.open(self.path / file)
        if stored.size != self.sizes[file]:
            raise FileError(f"{self.path / file} was replaced by another while it was read", hint="try again")
        return stored.fetch(begin, end)

    def hint_for_pickle(self) -> str:
        return "fetch the folder, and convert it"


@contextmanager
def open_remote(name: PathLike) -> Iterator[Checkpoint]:
    """Open the checkpoint of a repository or of a store's folder; of its weights only headers are read.

    The small files are in `folder` while the block runs; tensors can be read after it, too. Raises FileError for a
    wrong name, repository or revision, for a missing token or network, and as `open_checkpoint`.
    """
    place = _place(name)
    with tempfile.TemporaryDirectory(prefix="gguftools-") as temporary, recorded_reads() as reads:
        folder = Path(temporary, *place.folders)  # metadata takes names from the folder's
        folder.mkdir(parents=True)
        sizes = _fetch_small_files(place, folder)
        blocks = BlockCache(place.fetch)
        try:
            checkpoint = open_checkpoint(folder, partial(_open_weights, place, sizes, blocks))
        except GgufToolsError as error:  # name the source, not the temporary folder
            raise type(error)(str(error).replace(str(folder), place.name), error.hint) from error
        files = [place.path / path.name for path in checkpoint.files] if isinstance(place, StoredFolder) else []
        yield replace(checkpoint, files=list[Path](files), remote=place.identity)
        for path in [path for path in reads if path.is_relative_to(folder)]:
            del reads[path]  # a copy in the temporary folder
        if isinstance(place, StoredFolder):
            opened = place.objects.opened.items()
            reads |= {located(name): state_of_object(each.size, each.version) for name, each in opened}


def _place(name: PathLike) -> Place:
    path = located(name)
    if not isinstance(path, StorePath):
        raise FileError(f"{name} is not in a store")
    if is_pinned(path):
        from ..stores.hub import connect  # here, because it imports much

        return connect(str(path))
    if path.scheme in ("http", "https"):
        hint = hint_for_absent(str(path)) or "a GGUF file's address ends in .gguf; of a checkpoint, download the folder"
        raise FileError(f"{path}: web servers do not list folders", hint)
    return StoredFolder(path)


def listed_files(name: str, commit: str) -> list[tuple[str, int, str | None]]:
    """List the files that a model of a repository is read from: name, bytes, and SHA-256 if the hub has it.

    name: as the user wrote it. Raises FileError.
    """
    from ..stores.hub import connect

    repository = replace(connect(f"{name.partition('@')[0].rstrip('/')}@{commit}"), name=name)
    names = repository.listing()
    if TEMPLATES in names and names[TEMPLATES] is None:
        repository.listing(TEMPLATES)
    read = (*SMALL_SUFFIXES, ".safetensors")
    return [
        (file, size, repository.digests.get(file))
        for file, size in sorted(repository.sizes.items())
        if file.endswith(read)
    ]


def _fetch_small_files(place: Place, folder: Path) -> dict[str, int]:
    """Fill the folder with small files and an empty file for each other one; return the others' sizes."""
    entries = place.listing()
    sizes, small = {}, []
    for name, size in entries.items():
        if size is not None and name.endswith(SMALL_SUFFIXES) and size <= SMALL_FILE:
            small.append(name)
        elif size is not None:
            (folder / name).touch()
            sizes[name] = size
    if TEMPLATES in entries and entries[TEMPLATES] is None:
        (folder / TEMPLATES).mkdir()
        more = place.listing(TEMPLATES).items()
        small += [f"{TEMPLATES}/{name}" for name, size in more if name.endswith(".jinja") and size is not None]
    if (total := sum(place.sizes[name] for name in small)) > MAX_SMALL_FILES:
        raise FileError(f"{place.name} has {total:,} bytes of configuration; no model needs as many")
    for name in small:
        (folder / name).write_bytes(place.fetch(name, 0, place.sizes[name]).tobytes())
    return sizes


def _open_weights(place: Place, sizes: dict[str, int], blocks: BlockCache, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a weight file. sizes: bytes by name. Raises FileError, also for pickles."""
    return opened_file(place, path.name, sizes[path.name], blocks, path)[0]


def opened_file(
    place: Place, name: str, size: int, blocks: BlockCache, path: Path | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a weight file, and the texts of its header. path: names it in errors.

    Raises FileError, also for pickles.
    """
    path = Path(name) if path is None else path
    if path.suffix not in (".safetensors", ".sft"):
        raise FileError(f"{path} is a pickle, which can't be read in parts", place.hint_for_pickle())
    if not size:
        raise FileError(f"{path} is empty, not a safetensors file")
    beginning = place.fetch(name, 0, min(size, FIRST_READ))
    length = header_size(path, beginning, size)
    if length > len(beginning):
        beginning = np.concatenate([beginning, place.fetch(name, len(beginning), length)])
    header = beginning[:length]
    tensors = tensors_of(path, header, size, lambda begin, end: read(begin, end))
    read = blocks.reader(name, data_edges(header))  # after the header was checked
    return tensors, metadata_of(path, header)
