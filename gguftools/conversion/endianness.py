"""The same GGUF file in the other byte order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quants import Tensor
from quants.errors import OptionError

from ..files.atomic import Reads, check_space, check_target, output_path
from ..files.gguf.endian import swap_rows
from ..files.gguf.reader import DEFAULT_ALIGNMENT, SHARD_NAME, GgufFile, open_gguf
from ..files.gguf.writer import Layout, OpenGguf, TensorInfo, create_ggufs, plan_file
from ..inputs import read_by_calls

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int, str], None]
ORDERS = ("little", "big")
CHUNK = 1 << 24


@dataclass(frozen=True)
class EndianReport:
    """What was written: the files (several of a split set), and their byte order."""

    files: list[Path]
    order: str
    nbytes: int

    def as_dict(self) -> dict[str, Any]:
        return {"files": [str(path) for path in self.files], "byte_order": self.order, "bytes": self.nbytes}


def convert_endian(
    path: PathLike,
    order: str | None = None,
    output: PathLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EndianReport:
    """Write a GGUF file, or all shards of a set, in another byte order: header, metadata, tensors of every type.

    order: "little" or "big"; the other one if not given. output: the file, of a set the name that `-0000N-of-…` is
    added to; NAME-ORDER.gguf if not given. Raises FileError, OptionError.
    """
    opened = open_gguf(Path(path))
    order = order or ORDERS[opened.byte_order == "little"]
    if order not in ORDERS:
        raise OptionError(f"there is no byte order {order!r}", hint="it is little or big")
    if order == opened.byte_order:
        raise OptionError(f"{path} is {order} endian already")
    layouts = [_plan(part, order) for part in opened.parts]
    targets = _targets(opened, order, output)
    reads = Reads(states=opened.states)
    total, done = sum(layout.total for layout in layouts), 0
    for target in targets:
        check_target(target, reads, overwrite)
    check_space(targets[0], total)
    tensors = read_by_calls(opened)
    with create_ggufs(list(zip(targets, layouts, strict=True)), overwrite, reads) as files:
        for part, layout, file in zip(opened.parts, layouts, files, strict=True):
            _write([tensors[name] for name in part.tensors], file, order, progress, done, total)
            done += layout.total
    return EndianReport(targets, order, total)


def _plan(part: GgufFile, order: str) -> Layout:
    infos = [TensorInfo(tensor.name, tensor.shape, tensor.format) for tensor in part.tensors.values()]
    return plan_file(part.metadata, infos, DEFAULT_ALIGNMENT, 0, part.magic, part.version, order)


def _targets(opened: GgufFile, order: str, output: PathLike | None) -> list[Path]:
    count, match = len(opened.shards), SHARD_NAME.fullmatch(opened.path.name)
    stem = match["prefix"] if match and count > 1 else opened.path.name.removesuffix(".gguf")
    path = output_path(opened.path.parent if output is None else output, f"{stem}-{order}.gguf")
    if count == 1:
        return [path]
    stem = path.name.removesuffix(".gguf")
    return [path.with_name(f"{stem}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]


def _write(
    tensors: list[Tensor], file: OpenGguf, order: str, progress: Progress | None, done: int, total: int
) -> None:
    for index, tensor in enumerate(tensors):
        step = max(1, CHUNK // max(1, tensor.row_bytes))
        for start in range(0, tensor.rows, step):
            rows = tensor.raw(start, min(start + step, tensor.rows))  # little endian, whatever the file is
            file.write(index, start, rows if order == "little" else swap_rows(tensor.format, rows))
            done += rows.nbytes
            if progress is not None:
                progress(done, total, tensor.name)
