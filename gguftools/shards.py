"""Split sets: a GGUF file cut into shards as the reference names and marks them, and put together to the byte."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archs.metadata import Metadata, ValueType
from quants.errors import FileError, OptionError

from .files.atomic import (
    atomic_output,
    check_space,
    create_unnamed,
    discard,
    explain_write_error,
    publish,
    sync_folder,
    write_at,
)
from .files.gguf_edit import copy_ranges
from .files.gguf_reader import DEFAULT_ALIGNMENT, SHARD_NAME, GgufFile, align, map_file, open_gguf
from .files.gguf_writer import Layout, TensorInfo, plan_file

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int, str], None]
Move = tuple[int, int, int]  # from, to, bytes

DEFAULT_TENSORS = 128
FREE_HINT = "run the same command again to go on; what is merged already is kept"


@dataclass(frozen=True)
class Shard:
    """One file of a set: its name, how many tensors it has, its size in bytes."""

    path: Path
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class ShardsReport:
    """What was, or (dry_run) would be, split or merged. whole: the file that has it all."""

    whole: Path
    whole_bytes: int
    shards: list[Shard]
    dry_run: bool
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        shards = [{"file": str(each.path), "tensors": each.tensors, "bytes": each.nbytes} for each in self.shards]
        return {"file": str(self.whole), "bytes": self.whole_bytes, "shards": shards, "dry_run": self.dry_run,
                "warnings": self.warnings}  # fmt: skip


@dataclass(frozen=True)
class _Output:
    """A file to write: its layout, its size, and what is copied into it."""

    path: Path
    layout: Layout
    moves: list[Move]
    total: int


def split(
    path: PathLike,
    output: PathLike | None = None,
    *,
    max_size: int | None = None,
    max_tensors: int | None = None,
    metadata_alone: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ShardsReport:
    """Cut a GGUF file into shards PREFIX-00001-of-0000N.gguf; the first has all metadata.

    output: PREFIX, where a final `.gguf` does not count; the file's own name if not given. max_size: bytes of tensors
    of a shard, counted as stored. max_tensors: 128 if neither is given. metadata_alone: no tensors in the first shard.
    `merge` restores the file byte for byte; where it cannot, a warning says why. Raises FileError, OptionError.
    """
    opened = open_gguf(Path(path), join=False)
    if opened.metadata.get("split.count", 0) > 1:
        raise OptionError(f"{path} is a shard already", hint="merge the set first")
    if not opened.tensors:
        raise OptionError(f"{path} has no tensors that could be split")
    groups = _groups(opened, max_size, max_tensors)
    if metadata_alone:
        groups.insert(0, [])
    prefix = Path(output) if output is not None else opened.path
    outputs = _plan_shards(opened, prefix.with_name(prefix.name.removesuffix(".gguf")), groups)
    shards = [Shard(each.path, len(group), each.total) for each, group in zip(outputs, groups, strict=True)]
    for shard in shards:
        _check_target(shard.path, [opened.path], overwrite)
    if not dry_run:
        check_space(shards[0].path, sum(shard.nbytes for shard in shards))
        _write_shards(opened.path, outputs, overwrite, progress)
    return ShardsReport(opened.path, opened.file_size, shards, dry_run, list(_why_not_exact(opened)))


def _groups(opened: GgufFile, max_size: int | None, max_tensors: int | None) -> list[list[TensorInfo]]:
    """The tensors of each shard: one after the other, until the next would be too much."""
    if max_size is not None and max_tensors is not None:
        raise OptionError("shards are bounded by --split-max-size or by --split-max-tensors, not by both")
    if max_tensors is not None and max_tensors < 1:
        raise OptionError(f"a shard of {max_tensors} tensors is none")
    count = max_tensors or (DEFAULT_TENSORS if max_size is None else len(opened.tensors))
    groups: list[list[TensorInfo]] = [[]]
    filled = 0
    for info in _infos(opened):
        size = align(info.nbytes, DEFAULT_ALIGNMENT)
        if groups[-1] and (len(groups[-1]) == count or (max_size is not None and filled + size > max_size)):
            groups.append([])
            filled = 0
        groups[-1].append(info)
        filled += size
    return groups


def _infos(opened: GgufFile) -> list[TensorInfo]:
    return [TensorInfo(tensor.name, tensor.shape, tensor.format) for tensor in opened.tensors.values()]


def _plan_shards(opened: GgufFile, prefix: Path, groups: Sequence[Sequence[TensorInfo]]) -> list[_Output]:
    outputs = []
    for number, infos in enumerate(groups):
        metadata = _without_split_keys(opened.metadata) if number == 0 else Metadata()
        metadata.set("split.no", number, ValueType.UINT16)
        metadata.set("split.count", len(groups), ValueType.UINT16)
        metadata.set("split.tensors.count", len(opened.tensors), ValueType.INT32)
        path = prefix.with_name(f"{prefix.name}-{number + 1:05d}-of-{len(groups):05d}.gguf")
        layout = plan_file(metadata, infos, DEFAULT_ALIGNMENT, 0, opened.magic, opened.version, opened.byte_order)
        offsets = dict(zip((info.name for info in infos), layout.offsets, strict=True))
        moves, total = _moves(opened, layout, offsets, number == len(groups) - 1)
        outputs.append(_Output(path, layout, moves, total))
    return outputs


def _without_split_keys(metadata: Metadata) -> Metadata:
    new = metadata.copy()
    for key in [key for key in new if key.startswith("split.")]:
        del new[key]
    return new


def _moves(source: GgufFile, layout: Layout, offsets: Mapping[str, int], to_end: bool) -> tuple[list[Move], int]:
    """What to copy from `source` for tensors that get these offsets, and how large the file must be for it.

    to_end: what follows the source's last tensor is to follow the last one here: files end with padding, or don't.
    """
    moves: list[Move] = []
    same_alignment = source.alignment == layout.alignment
    ends = (source.offsets[name] + tensor.nbytes for name, tensor in source.tensors.items())
    data_end = max(ends, default=source.data_offset) if to_end else 0
    for name, to in offsets.items():
        if name not in source.tensors:
            continue
        begin, size = source.offsets[name], source.tensors[name].nbytes
        if same_alignment and not (to_end and begin + size == data_end):
            size = min(align(size, source.alignment), source.file_size - begin)
        if moves and moves[-1][0] + moves[-1][2] == begin and moves[-1][1] + moves[-1][2] == to:
            begin, to, size = moves[-1][0], moves[-1][1], moves[-1][2] + size
            moves.pop()
        moves.append((begin, to, size))
    if not to_end:
        return moves, layout.total
    last = max((offset + info.nbytes for offset, info in zip(layout.offsets, layout.tensors, strict=True)), default=0)
    tail = map_file(source.path, "GGUF file")[data_end:]
    if len(tail) == align(data_end, source.alignment) - data_end and not tail.any():
        return moves, layout.total
    return [*moves, (data_end, last, len(tail))], last + len(tail)


def _why_not_exact(opened: GgufFile) -> Iterator[str]:
    """Why `merge` would give another file than the one that was split."""
    infos = _infos(opened)
    if any(key.startswith("split.") for key in opened.metadata):
        yield "the file has split.* keys left over from a merge; merging will not bring them back"
        return
    layout = plan_file(opened.metadata, infos, DEFAULT_ALIGNMENT, 0, opened.magic, opened.version, opened.byte_order)
    stored = map_file(opened.path, "GGUF file")[: opened.data_offset].tobytes()
    if layout.offsets != list(opened.offsets.values()):
        yield "the file's tensors are not stored in the order in which they are listed; merging will store them so"
    elif layout.header != stored:
        yield "the file's header is not as we write it; merging will give an equal one"


def _check_target(target: Path, sources: Sequence[Path], overwrite: bool) -> None:
    if any(target.resolve() == source.resolve() for source in sources):
        raise OptionError(f"{target} is read, so it cannot be written", hint="name another output with -o")
    if os.path.lexists(target) and not overwrite:
        raise FileError(f"{target} already exists", hint="pass --overwrite to replace it")


def _write_shards(source: Path, outputs: Sequence[_Output], overwrite: bool, progress: Progress | None) -> None:
    """The first shard last: until it is there, no one can take the others for a whole set."""
    total, done = sum(output.total for output in outputs), 0
    finished: list[Path] = []
    try:
        for output in reversed(outputs):
            _write_file([(source, output.moves)], output, overwrite, progress, done, total)
            finished.append(output.path)
            done += output.total
    except BaseException:
        for path in finished:
            path.unlink(missing_ok=True)
        raise


def _write_file(
    sources: Sequence[tuple[Path, list[Move]]], output: _Output, overwrite: bool, progress: Progress | None,
    done: int, total: int,
) -> None:  # fmt: skip
    unnamed = create_unnamed(output.path, output.total)
    try:
        os.ftruncate(unnamed.fd, output.total)
        write_at(unnamed.fd, memoryview(output.layout.header), 0)
        for source, moves in sources:
            _copy(source, unnamed.fd, moves, progress, done, total, output.path.name)
            done += sum(size for _, _, size in moves)
        publish(unnamed, output.path, overwrite)
    except OSError as error:
        raise explain_write_error(error, output.path, output.total) from error
    finally:
        discard(unnamed)


def _copy(
    source: Path, target: int, moves: Sequence[Move], progress: Progress | None, done: int, total: int, label: str
) -> None:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror}") from error
    try:
        copy_ranges(fd, target, moves, None if progress is None else lambda now, _: progress(done + now, total, label))
    finally:
        os.close(fd)


def merge(
    path: PathLike,
    output: PathLike | None = None,
    *,
    free: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ShardsReport:
    """Put a split set together; any shard may be named. The result is the file that was split, byte for byte.

    output: PREFIX.gguf beside the shards if not given. free: delete each shard as soon as its bytes are safe in the
    output, so that the disk needs room for one shard only; after an interruption the same call goes on.
    Raises FileError, OptionError.
    """
    path = Path(path)
    match = SHARD_NAME.fullmatch(path.name)
    target = Path(output) if output is not None else path.with_name(f"{match['prefix'] if match else path.stem}.gguf")
    if _Freeing.state_path(target).exists():
        if not free:
            raise OptionError(f"a merge into {target} that frees shards was interrupted", hint="finish it with --free")
        return _Freeing.resume(path, target, dry_run, progress)
    opened = _open_set(path)
    whole = _plan_whole(opened, target)
    shards = [Shard(part.path, len(part.tensors), part.file_size) for part in opened.parts]
    _check_target(target, opened.shards, overwrite)
    report = ShardsReport(target, whole.total, shards, dry_run)
    if dry_run:
        return report
    if free:
        _Freeing.start(whole, opened.parts).run(opened.parts, progress)
    else:
        offsets = dict(zip(opened.tensors, whole.layout.offsets, strict=True))
        last = opened.parts[-1]
        sources = [(part.path, _moves(part, whole.layout, offsets, part is last)[0]) for part in opened.parts]
        _write_file(sources, whole, overwrite, progress, 0, whole.total)
    return report


def _open_set(path: Path) -> GgufFile:
    opened = open_gguf(path)
    if not opened.is_split and not opened.metadata.get("split.count"):
        raise OptionError(f"{path} is not a shard of a split set: it has no split.count")
    return opened


def _plan_whole(opened: GgufFile, target: Path) -> _Output:
    metadata = _without_split_keys(opened.metadata)
    first = opened.parts[0]
    layout = plan_file(metadata, _infos(opened), DEFAULT_ALIGNMENT, 0, first.magic, first.version, first.byte_order)
    offsets = dict(zip(opened.tensors, layout.offsets, strict=True))
    _, total = _moves(opened.parts[-1], layout, offsets, True)
    return _Output(target, layout, [], total)


@dataclass(frozen=True)
class _Freeing:
    """A merge that deletes shards as it goes: the unfinished output has a name of its own; a list says what is done.

    The unfinished file has its whole header before the list exists; a shard is in the list before it is deleted, and
    its bytes are safe before it is in the list. The shard with the metadata goes last.
    """

    target: Path
    shards: list[str]
    merged: list[str]

    @staticmethod
    def partial_path(target: Path) -> Path:
        return target.with_name(f"{target.name}.merging")

    @staticmethod
    def state_path(target: Path) -> Path:
        return target.with_name(f"{target.name}.merging.json")

    @classmethod
    def start(cls, whole: _Output, parts: Sequence[GgufFile]) -> _Freeing:
        partial = cls.partial_path(whole.path)
        check_space(partial, len(whole.layout.header) + max(part.file_size for part in parts))
        try:
            with _opened_for_writing(partial, os.O_CREAT) as fd:
                os.ftruncate(fd, 0)
                write_at(fd, memoryview(whole.layout.header), 0)
                os.ftruncate(fd, whole.total)
                os.fsync(fd)
            sync_folder(partial.parent)
        except OSError as error:
            raise explain_write_error(error, whole.path, whole.total) from error
        new = cls(whole.path, [part.path.name for part in parts], [])
        new.store()
        return new

    @classmethod
    def resume(cls, path: Path, target: Path, dry_run: bool, progress: Progress | None) -> ShardsReport:
        """Go on with an interrupted merge."""
        state = cls.state_path(target)
        try:
            stored = json.loads(state.read_text(encoding="utf-8"))
            found = cls(target, list(stored["shards"]), list(stored["merged"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{state} is not the list of an interrupted merge: {error}") from error
        if path.name not in found.shards:
            raise OptionError(f"{target} is being merged from other shards: {', '.join(found.shards[:3])}")
        missing = [name for name in found.left() if not path.with_name(name).exists()]
        if missing:
            raise FileError(f"the shard {path.with_name(missing[0])} is gone, and was not merged into {target} yet")
        unfinished = cls.partial_path(target) if found.left() or not target.exists() else target
        if not unfinished.exists():
            raise FileError(f"{unfinished} is gone, which had the tensors of {len(found.merged)} deleted shards")
        parts = [open_gguf(path.with_name(name), join=False) for name in found.left()]
        left = [Shard(part.path, len(part.tensors), part.file_size) for part in parts]
        whole_bytes = unfinished.stat().st_size
        if not dry_run:
            for name in found.merged:
                path.with_name(name).unlink(missing_ok=True)
            found.run(parts, progress)
        return ShardsReport(target, whole_bytes, left, dry_run)

    def left(self) -> list[str]:
        return [name for name in self.shards if name not in self.merged]

    def store(self) -> None:
        with atomic_output(self.state_path(self.target), "w") as file:
            json.dump({"shards": self.shards, "merged": self.merged}, file)

    def run(self, parts: Sequence[GgufFile], progress: Progress | None) -> None:
        """Merge and delete the shards that are left, the first last; then give the output its name."""
        partial, state = self.partial_path(self.target), self.state_path(self.target)
        try:
            if partial.exists():
                with _opened_for_writing(partial, 0) as fd:
                    self._merge_parts(fd, parts, progress)
                    os.fsync(fd)
                partial.replace(self.target)
                sync_folder(partial.parent)
            state.unlink()
        except BaseException as error:
            if not self.merged:
                state.unlink(missing_ok=True)
                partial.unlink(missing_ok=True)
            if isinstance(error, OSError):
                told = explain_write_error(error, self.target, max(part.file_size for part in parts))
                raise FileError(str(told), hint=FREE_HINT if self.merged else told.hint) from error
            raise

    def _merge_parts(self, fd: int, parts: Sequence[GgufFile], progress: Progress | None) -> None:
        whole = open_gguf(self.partial_path(self.target))
        header = map_file(whole.path, "GGUF file")[: whole.data_offset].tobytes()
        layout = Layout(header, list(whole.offsets.values()), whole.file_size, tuple(_infos(whole)), whole.alignment)
        total, done = sum(part.file_size for part in parts), 0
        for part in reversed(parts):
            moves, _ = _moves(part, layout, whole.offsets, part.path.name == self.shards[-1])
            _copy(part.path, fd, moves, progress, done, total, part.path.name)
            os.fsync(fd)
            self.merged.append(part.path.name)
            self.store()
            part.path.unlink()
            done += part.file_size


@contextmanager
def _opened_for_writing(path: Path, flags: int) -> Iterator[int]:
    """A file opened for reading and writing, by one program at a time."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(f"{path} is being written by another program", hint="wait until it is done") from None
        yield fd
    finally:
        os.close(fd)
