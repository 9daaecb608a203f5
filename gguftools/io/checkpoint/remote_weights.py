"""Open the weights of image and video models without a local copy: files of a repository or store, diffusers folders.

Only headers are read at first, and the rest by ranges, as of any other checkpoint; see `remote`.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archs.small_files import FileState
from quants import Tensor
from quants.arguments import PathLike
from quants.errors import FileError

from ..gguf.shards import shard_paths
from ..stores.block_cache import BlockCache
from ..stores.path import StorePath, located
from ..stores.store import HUB_FILE, is_pinned, state_of_object
from .folder import DIFFUSERS_LAYOUTS, SHARD, weight_files
from .remote import SMALL_FILE, Place, StoredFolder, opened_file

SAFETENSORS = (".safetensors", ".sft")
WEB = ("http:", "https:")
PIPELINE, CONFIG = "model_index.json", "config.json"
WEIGHTS = "diffusion_pytorch_model"  # what the names of diffusers' weight files begin with
READ = (".json",)  # suffixes of small files that tell which weight files there are


@dataclass(frozen=True)
class RemoteWeights:
    """Tensors of a source by name, the texts of its headers, and what decides its values: a commit or versions.

    files: of a store's folder; a repository's commit never changes. states: of those files as they were read.
    """

    tensors: dict[str, Tensor]
    header: dict[str, str]
    identity: tuple[str, str]
    files: tuple[Path, ...]
    states: dict[Path, FileState]


def is_weight_file(name: PathLike) -> bool:
    """Return True for the URL of a safetensors file."""
    return located(name).suffix.lower() in SAFETENSORS


def weight_names(name: PathLike, models: Sequence[str]) -> tuple[Place, list[str]] | None:
    """Return where the weights of an image or video model are, and their names there; None for another source.

    models: folders of a pipeline that may hold its model. Raises FileError.
    """
    if located(name).parts[0] in WEB and not is_weight_file(name):
        return None  # web servers list nothing
    place, inside = _place(name)
    if inside.lower().endswith(SAFETENSORS):
        folder, _, file = inside.rpartition("/")
        listed = place.listing(folder)
        names = _whole_set(file)
        if missing := [each for each in names if listed.get(each) is None]:
            raise FileError(f"{place.name} has no file {missing[0]}", "look at the names of its files")
        return place, [f"{folder}/{each}" if folder else each for each in names]
    listed = place.listing(inside)
    if PIPELINE in listed:
        present = [each for each in models if each in listed and listed[each] is None]
        if not present:
            raise FileError(f"{place.name} has no folder {' or '.join(models)}", "name one of its .safetensors files")
        inside = f"{inside}/{present[0]}" if inside else present[0]
        listed = place.listing(inside)
    elif CONFIG not in listed or not any(each.startswith(WEIGHTS) for each in listed):
        return None
    return place, [f"{inside}/{each}" if inside else each for each in _weights_in(place, inside, listed)]


def open_remote_weights(place: Place, names: Sequence[str]) -> RemoteWeights:
    """Open weight files; of each only the header is read. Raises FileError."""
    blocks = BlockCache(place.fetch)
    tensors: dict[str, Tensor] = {}
    header: dict[str, str] = {}
    for name in names:
        opened, texts = opened_file(place, name, place.sizes[name], blocks)
        if twice := next((each for each in opened if each in tensors), None):
            raise FileError(f"tensor {twice!r} is in two files: {tensors[twice].origin} and {opened[twice].origin}")
        tensors |= opened
        header |= texts
    files: tuple[Path, ...] = ()
    states: dict[Path, FileState] = {}
    if isinstance(place, StoredFolder):
        files = tuple(place.path / name for name in names)
        states = {
            located(name): state_of_object(each.size, each.version) for name, each in place.objects.opened.items()
        }
    return RemoteWeights(tensors, header, place.identity, files, states)


def _place(name: PathLike) -> tuple[Place, str]:
    """Return a repository or a folder of a store, and a path inside it."""
    path = located(name)
    if not isinstance(path, StorePath):
        raise FileError(f"{name} is not in a store")
    if is_pinned(path):
        from ..stores.hub import connect  # here, because it imports much

        match = HUB_FILE.fullmatch(str(path))
        return (connect(match[1]), match[2].rstrip("/")) if match else (connect(str(path)), "")
    if path.suffix.lower() in SAFETENSORS:
        folder = path.parent
        assert isinstance(folder, StorePath)
        return StoredFolder(folder), path.name
    return StoredFolder(path), ""


def _whole_set(file: str) -> list[str]:
    """Return the names of the set that a shard names, or the file alone."""
    match = SHARD.fullmatch(file)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return [file]
    return [path.name for path in shard_paths(Path(file), match[1], int(match[3]), match[4])]


def _weights_in(place: Place, inside: str, listed: dict[str, int | None]) -> list[str]:
    """Return the names of a folder's weight files, by its index if it has one."""
    with tempfile.TemporaryDirectory(prefix="gguftools-") as temporary:
        folder = Path(temporary)
        for name, size in listed.items():
            if size is None or not name.startswith(WEIGHTS):
                continue
            is_small = name.endswith(READ) and size <= SMALL_FILE
            content = place.fetch(f"{inside}/{name}" if inside else name, 0, size).tobytes() if is_small else b""
            (folder / name).write_bytes(content)
        try:
            files, _, _ = weight_files(folder, DIFFUSERS_LAYOUTS)
        except FileError as error:
            raise FileError(str(error).replace(temporary, f"{place.name}/{inside}"), error.hint) from error
        return [path.name for path in files]
