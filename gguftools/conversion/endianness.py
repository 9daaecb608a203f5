"""Convert GGUF files to the other byte order."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quants.arguments import PathLike
from quants.errors import OptionError

from ..io.atomic import InputFiles, check_space, check_target, output_path
from ..io.gguf.reader import open_gguf
from ..io.gguf.shards import set_name, shard_paths
from ..models.model import Model, stored_file
from ..models.sources import pread_tensors
from ..writing.items import Item
from ..writing.options import WriteOptions
from ..writing.pipeline import FilePlan, write_files
from ..writing.row_blocks import Progress

ORDERS = ("little", "big")


@dataclass(frozen=True)
class EndianReport:
    """Report what was written. files: one, or those of a split set. order: "little" or "big". nbytes: of all files."""

    files: list[Path]
    order: str
    nbytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of `convert-endian --json`."""
        return {"files": [str(path) for path in self.files], "byte_order": self.order, "size_bytes": self.nbytes}


def convert_endian(
    source: PathLike | Model,
    order: str | None = None,
    output: PathLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EndianReport:
    """Write a GGUF file, or all shards of a set, in another byte order: header, metadata, tensors of every type.

    source: the file (of a set, any shard), or a Model opened from it. order: "little" or "big"; default the other one.
    output: the file, of a set the name that `-0000N-of-…` is added to; default NAME-ORDER.gguf. overwrite: replace
    existing files. progress(bytes read, of how many, tensor). Raises FileError, OptionError.
    """
    opened = open_gguf(stored_file(source))
    order = order or ORDERS[opened.byte_order == "little"]
    if order not in ORDERS:
        raise OptionError(f"there is no byte order {order!r}", hint="it is little or big")
    if order == opened.byte_order:
        raise OptionError(f"{opened.path} is {order} endian already")
    tensors = pread_tensors(opened)
    count = len(opened.shards)
    stem = set_name(opened.path) if count > 1 else opened.path.name.removesuffix(".gguf")
    path = output_path(opened.path.parent if output is None else output, f"{stem}-{order}.gguf")
    targets = [path] if count == 1 else shard_paths(path, path.name.removesuffix(".gguf"), count)
    files = []
    for part, target in zip(opened.parts, targets, strict=True):
        items = tuple(Item(tensors[name], tensors[name].format) for name in part.tensors)
        files.append(FilePlan(target, part.metadata, items, magic=part.magic, version=part.version, byte_order=order))
    reads, total = InputFiles(states=opened.states), sum(file.layout.total for file in files)
    for target in targets:
        check_target(target, reads, overwrite)
    check_space(targets[0], total)
    write_files(files, WriteOptions(progress=progress, overwrite=overwrite, reads=reads), finite=False)
    return EndianReport(targets, order, total)
