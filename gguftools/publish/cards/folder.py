"""Read a folder that is to be published: its models with their shards, what goes with them, and measured results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, as_path
from quants.errors import FileError, GgufToolsError

from ...io.gguf.shards import SHARD_NAME
from ...measurement.sizes import bits_per_weight, size_bytes
from ...models.model import Model, opened_gguf
from ..names import Role, hub_label, role_of
from ..report.results import Measured, Results, read_results, results_of

RESULTS, SUMS, CARD, SETTINGS = "divergence.json", "SHA256SUMS", "README.md", "release.toml"


@dataclass(frozen=True)
class PublishedFile:
    """A model, encoder or matrix in a folder.

    name: of its first file, in the folder. measured: None if it was not. is_base: others are compared with it.
    """

    name: str
    role: Role | None
    model: Model
    size: int
    shards: int
    measured: Measured | None = None
    is_base: bool = False

    @property
    def type(self) -> str:
        """Return the quantization as the name has it; without one the file's own name."""
        label = hub_label(self.name)
        return label if label is not None else Path(self.name).stem

    @property
    def bits(self) -> float:
        return bits_per_weight(self.model)


@dataclass(frozen=True)
class PublishedFolder:
    """What a folder has. files: all GGUF files by role and size, the largest first; results: of `divergence`."""

    path: Path
    files: list[PublishedFile]
    results: Results | None
    data: Mapping[str, Any] | None = None
    unreadable: list[str] = field(default_factory=list)

    @property
    def models(self) -> list[PublishedFile]:
        return [each for each in self.files if each.role == "model"]

    def of_role(self, role: Role) -> list[PublishedFile]:
        return [each for each in self.files if each.role == role]

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()


def read_folder(folder: PathLike) -> PublishedFolder:
    """Read a folder of GGUF files, and of folders of shards in it.

    Raises FileError for a folder without a model, and for results that cannot be read. A file that cannot be read is
    listed.
    """
    path = as_path(folder, "the folder")
    if not path.is_dir():
        raise FileError(f"{path} is no folder", "name the folder that has the GGUF files")
    results, data = _results(path)
    files, unreadable = [], []
    for file in sorted([*path.glob("*.gguf"), *path.glob("*/*.gguf")]):
        shard = SHARD_NAME.fullmatch(file.name)
        if shard is not None and int(shard["number"]) != 1:
            continue
        try:
            files.append(_published(path, file, results))
        except GgufToolsError as error:
            unreadable.append(f"{file.relative_to(path)}: {error}")
    folder_read = PublishedFolder(path, sorted(files, key=lambda each: -each.size), results, data, unreadable)
    if not folder_read.models:
        hint = "; ".join(unreadable) or "convert or quantize one into it"
        raise FileError(f"{path} has no model in GGUF files", hint)
    return folder_read


def _published(folder: Path, file: Path, results: Results | None) -> PublishedFile:
    model, name = opened_gguf(file), file.relative_to(folder).as_posix()
    role = role_of(name)
    if model.metadata.get("general.type") in ("mmproj", "imatrix"):
        role = model.metadata["general.type"]
    measured = next((each for each in results.files if each.name == file.name), None) if results else None
    is_base = results is not None and Path(results.base).name == file.name
    return PublishedFile(name, role, model, size_bytes(model), len(model.files), measured, is_base)


def _results(folder: Path) -> tuple[Results | None, Mapping[str, Any] | None]:
    path = folder / RESULTS
    if not path.is_file():
        return None, None
    data = read_results(path)
    return results_of(data, str(path)), data
