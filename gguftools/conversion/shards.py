"""Split GGUF files into shards with the reference's names and marks, and merge them to the same bytes."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from archs.diffusion.image_file import image_file
from archs.diffusion.spec import READERS
from quants.arguments import PathLike, as_count
from quants.errors import FileError, OptionError

from ..io import atomic
from ..io.atomic import InputFiles, check_space, check_target, explained, output_path
from ..io.gguf.copies import Copy, planned_traffic, progress_of, warning_of, write_copies
from ..io.gguf.reader import DEFAULT_ALIGNMENT, GgufFile, align, map_file, open_gguf
from ..io.gguf.shards import distribute, set_name, shard_metadata, shard_paths, without_split_keys
from ..io.gguf.writer import Layout, OpenGguf, TensorInfo, plan_file, tensor_infos
from ..io.locks import held, is_named, state_of
from ..io.positioned import Move, copy_ranges
from ..io.stores.path import StorePath, located
from ..io.stores.pieces import Traffic
from ..io.unfinished import Unfinished, unfinished
from ..models.model import Model, stored_file
from ..writing.row_blocks import Progress

Output = tuple[Layout, Copy]

DEFAULT_TENSORS = 128
MERGING, STATE = ".merging", ".merging.json"  # suffixes of an unfinished output and of its journal
HASHED_AT_ONCE = 1 << 24  # bytes
FREE_STORED = "merge without `free`, and delete the shards afterwards"
FREE_HINT = "run the same command again to go on; what is merged already is kept"


@dataclass(frozen=True)
class Shard:
    """Describe one file of a set: path, number of tensors, size in bytes."""

    path: Path
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class ShardsReport:
    """Report what was, or (dry_run) would be, split or merged.

    whole: the unsplit file; whole_bytes: its size. warnings: why merging would not give the same bytes again, of
    programs that open no shards, and about bytes that are sent although a store has them. traffic: in a store.
    """

    whole: Path
    whole_bytes: int
    shards: list[Shard]
    dry_run: bool
    warnings: list[str] = field(default_factory=list)
    traffic: Traffic | None = None

    def oversized(self, max_size: int) -> int:
        """Count the shards that are larger than `max_size` because of one tensor."""
        return sum(each.tensors == 1 and each.nbytes > max_size for each in self.shards)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of `split --json` and `merge --json`."""
        shards = [{"file": str(each.path), "tensors": each.tensors, "size_bytes": each.nbytes} for each in self.shards]
        return {
            "file": str(self.whole),
            "size_bytes": self.whole_bytes,
            "shards": shards,
            "dry_run": self.dry_run,
            "warnings": self.warnings,
            "store": self.traffic.as_dict() if self.traffic else None,
        }


def split(
    source: PathLike | Model,
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

    source: the file, or a Model opened from it. output: PREFIX, without a final `.gguf`, or a folder; default the
    file's own name. max_size: bytes of tensors of a shard, as stored. max_tensors: 128 if neither is given.
    metadata_alone: no tensors in the first one. overwrite: replace existing files. dry_run: write nothing.
    progress(bytes copied, of how many, file). `merge` restores the file byte for byte; if it cannot, a warning tells
    why. Returns the shards. Raises FileError, OptionError.
    """
    opened = open_gguf(stored_file(source), join=False)
    if opened.metadata.get("split.count", 0) > 1:
        raise OptionError(f"{opened.path} is a shard already", hint="merge the set first")
    if not opened.tensors:
        raise OptionError(f"{opened.path} has no tensors that could be split")
    groups = _groups(opened, max_size, max_tensors)
    if metadata_alone:
        groups.insert(0, [])
    prefix = opened.path if output is None else _prefix(output, opened.path.name)
    outputs = _plan_shards(opened, prefix, groups)
    shards = [Shard(copy.path, len(layout.tensors), copy.total) for layout, copy in outputs]
    reads = InputFiles(states=opened.states)
    for shard in shards:
        check_target(shard.path, reads, overwrite)
    warnings, copies = [*_why_not_exact(opened), *_why_not_read(opened)], [copy for _, copy in outputs]
    if dry_run:
        traffic = planned_traffic(copies)
    else:
        check_space(shards[0].path, sum(shard.nbytes for shard in shards))
        traffic = write_copies(copies, overwrite, reads, progress)
    warnings += filter(None, [warning_of(copies, traffic)])
    return ShardsReport(opened.path, opened.file_size, shards, dry_run, warnings, traffic)


def _prefix(output: PathLike, name: str) -> Path:
    """Return the prefix that an output names; in a store, too, without a final `.gguf`."""
    path = located(output)
    is_bare = isinstance(path, StorePath) and path.is_writable and len(path.parts) > 2 and path.suffix != ".gguf"
    return path if is_bare and not os.fspath(output).endswith("/") else output_path(output, name)


def _groups(opened: GgufFile, max_size: int | None, max_tensors: int | None) -> list[list[TensorInfo]]:
    """Return the tensors of each shard: in order, until the next would be too much."""
    if max_size is not None and max_tensors is not None:
        raise OptionError("shards are bounded by `max_size` or by `max_tensors`, not by both")
    for argument, limit in (("max_size", max_size), ("max_tensors", max_tensors)):
        if limit is not None:
            as_count(limit, argument)
    if max_tensors is not None and max_tensors < 1:
        raise OptionError(f"a shard needs at least 1 tensor, not {max_tensors}")
    return distribute(
        tensor_infos(opened),
        lambda info: align(info.nbytes, DEFAULT_ALIGNMENT),
        max_size,
        max_tensors or (DEFAULT_TENSORS if max_size is None else None),
    )


def _plan_shards(opened: GgufFile, prefix: Path, groups: Sequence[Sequence[TensorInfo]]) -> list[Output]:
    outputs, original = list[Output](), opened.original
    metadata, count = without_split_keys(opened.metadata), len(groups)
    paths = shard_paths(prefix, prefix.name.removesuffix(".gguf"), count)
    for number, (path, infos) in enumerate(zip(paths, groups, strict=True)):
        own = shard_metadata(metadata, number, count, len(opened.tensors))
        layout = plan_file(own, infos, DEFAULT_ALIGNMENT, 0, opened.magic, opened.version, opened.byte_order)
        offsets = dict(zip((info.name for info in infos), layout.offsets, strict=True))
        moves, total = _moves(opened, layout, offsets, number == count - 1)
        outputs.append((layout, Copy(path, layout.header, total, [(original, moves)])))
    return outputs


def _moves(source: GgufFile, layout: Layout, offsets: Mapping[str, int], to_end: bool) -> tuple[list[Move], int]:
    """Return what to copy from `source` for tensors at these offsets, and the size the file must have.

    to_end: also copy what follows the source's last tensor: files end with padding, or don't.
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
    tail = source.file_size - data_end
    is_usual = tail == align(data_end, source.alignment) - data_end
    if is_usual and not source.original.read(data_end, source.file_size).any():
        return moves, layout.total
    return [*moves, (data_end, last, tail)], last + tail


def _why_not_exact(opened: GgufFile) -> Iterator[str]:
    """Yield reasons why `merge` would give another file than the one that was split."""
    infos = tensor_infos(opened)
    if any(key.startswith("split.") for key in opened.metadata):
        yield "the file has split.* keys left over from a merge; merging will not bring them back"
        return
    layout = plan_file(opened.metadata, infos, DEFAULT_ALIGNMENT, 0, opened.magic, opened.version, opened.byte_order)
    stored = opened.original.read(0, min(opened.data_offset, opened.file_size)).tobytes()
    if layout.offsets != list(opened.offsets.values()):
        yield "the file's tensors are not stored in the order in which they are listed; merging will store them so"
    elif layout.header != stored:
        yield "the file's header is not as we write it; merging will give an equal one"


def _why_not_read(opened: GgufFile) -> Iterator[str]:
    """Yield a warning of an image or video model: the programs that load such files open one file."""
    if image_file(opened.metadata, opened.tensors) is not None:
        yield f"{', '.join(READERS.values())} open one file: merge the shards before use"


def merge(
    source: PathLike | Model,
    output: PathLike | None = None,
    *,
    free: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ShardsReport:
    """Merge a split set; any shard may be named. The result is the file that was split, byte for byte.

    source: a shard, or a Model opened from one. output: default PREFIX.gguf next to the shards. free: delete each shard
    as soon as its bytes are durable in the output, so that the disk needs room for one shard only; after an
    interruption the same call goes on. overwrite: replace an existing file. dry_run: write nothing. progress(bytes
    copied, of how many, file). Returns the merged shards. Raises FileError, OptionError.
    """
    path = stored_file(source)
    name = f"{set_name(path)}.gguf"
    target = path.with_name(name) if output is None else output_path(output, name)
    if free and (isinstance(path, StorePath) or isinstance(target, StorePath)):
        raise OptionError(f"shards are freed on this disk alone: {path} or {target} is in a store", FREE_STORED)
    if not isinstance(target, StorePath) and os.path.lexists(target.with_name(target.name + STATE)):
        if not free:
            raise OptionError(f"a merge into {target} that frees shards was interrupted", hint="finish it with `free`")
        resumed = _resume(path, target, overwrite, dry_run, progress)
        if resumed is not None:
            return resumed
    opened = open_gguf(path)
    if not opened.is_split and not opened.metadata.get("split.count"):
        raise OptionError(f"{path} is not a shard of a split set: it has no split.count")
    metadata, infos, first = without_split_keys(opened.metadata), tensor_infos(opened), opened.parts[0]
    layout = plan_file(metadata, infos, DEFAULT_ALIGNMENT, 0, first.magic, first.version, first.byte_order)
    offsets, last = dict(zip(opened.tensors, layout.offsets, strict=True)), opened.parts[-1]
    layout = replace(layout, total=_moves(last, layout, offsets, True)[1])
    reads = InputFiles(states=opened.states)
    check_target(target, reads, overwrite)
    if free and not dry_run:
        _free(opened, layout, target, reads, overwrite, progress)
        return ShardsReport(target, layout.total, _shards(opened.parts), dry_run)
    sources = [(part.original, _moves(part, layout, offsets, part is last)[0]) for part in opened.parts]
    copies = [Copy(target, layout.header, layout.total, sources)]
    traffic = planned_traffic(copies) if dry_run else write_copies(copies, overwrite, reads, progress)
    warnings = list(filter(None, [warning_of(copies, traffic)]))
    return ShardsReport(target, layout.total, _shards(opened.parts), dry_run, warnings, traffic)


def _shards(parts: Sequence[GgufFile]) -> list[Shard]:
    return [Shard(part.path, len(part.tensors), part.file_size) for part in parts]


def _free(
    opened: GgufFile, layout: Layout, target: Path, reads: InputFiles, overwrite: bool, progress: Progress | None
) -> None:
    """Begin a merge that deletes shards, and do it."""
    partial = target.with_name(target.name + MERGING)
    check_target(partial, reads)
    check_target(target.with_name(target.name + STATE), reads)
    check_space(partial, len(layout.header) + max(part.file_size for part in opened.parts))
    head = {
        "shards": [[part.path.name, *_fingerprint(part)] for part in opened.parts],
        "whole": [layout.total, hashlib.sha256(layout.header).hexdigest()],
    }
    with ExitStack() as stack:
        stack.enter_context(held(opened.parts[0].path))
        file = stack.enter_context(unfinished(target, MERGING, STATE, head, "shards", layout.total, overwrite))
        if file.lines:
            raise FileError(f"another run is merging into {target}", hint="run the same command again to go on with it")
        try:
            reads.check_unchanged()
            file.open()
            with explained(target, layout.total):
                OpenGguf(file.fd, layout, target).lay_out()
                os.fsync(file.fd)
        except BaseException:
            file.abandon()
            raise
        _free_parts(file, opened.parts[-1].path.name, [], opened.parts, progress)


def _resume(path: Path, target: Path, overwrite: bool, dry_run: bool, progress: Progress | None) -> ShardsReport | None:
    """Resume an interrupted merge; return None if it can begin anew, because nothing was deleted yet."""
    with ExitStack() as stack:
        write = overwrite and not dry_run
        file = stack.enter_context(unfinished(target, MERGING, STATE, {}, "shards", 0, write))
        if not file.lines:  # it ended while we looked
            file.end()
            return None
        head, done, expected = _noted(file)
        whole_bytes, merged = head["whole"][0], [each.name for each in done]
        if not merged and not dry_run:
            file.open(0, whole_bytes)
            file.abandon()
            return None
        left = [path.with_name(name) for name in expected if name not in merged]
        if path.name not in expected:
            raise OptionError(f"{target} is being merged from other shards: {', '.join(list(expected)[:3])}")
        for shard in left:
            if not shard.exists():
                raise FileError(f"the shard {shard} is missing, and was not merged into {target} yet")
        if left and not dry_run:
            stack.enter_context(held(left[0]))
        parts = [open_gguf(shard, join=False) for shard in left]
        for part in parts:
            if _fingerprint(part) != expected[part.path.name]:
                raise FileError(
                    f"the shard {part.path} is not the one that was there when merging into {target} began",
                    hint="put that one back, and run the same command again",
                )
        report = ShardsReport(target, whole_bytes, _shards(parts), dry_run)
        if dry_run:
            return report
        if not left and _is_whole(target, head) and (not file.path.exists() or file.path.samefile(target)):
            file.path.unlink(missing_ok=True)
            file.end()
            return report
        if not file.path.exists():
            raise FileError(f"{file.path} is gone, which had the tensors of {len(merged)} deleted shards")
        check_target(target, InputFiles(tuple(left)), overwrite)
        file.open(whole_bytes)
        if not _is_whole(file.path, head):
            raise FileError(f"{file.path} is not what the merge into {target} left", hint="fetch the shards again")
        _check_merged(file, done)
        for shard in map(path.with_name, merged):  # a run may have been interrupted before it deleted the last of them
            if shard.is_file() and _fingerprint(open_gguf(shard, join=False)) == expected[shard.name]:
                shard.unlink()
        _free_parts(file, head["shards"][-1][0], merged, parts, progress)
        return report


def _noted(file: Unfinished) -> tuple[dict[str, Any], list["_Merged"], dict[str, tuple[int, str]]]:
    """Read the journal of an interrupted merge: its head, the merged shards, and fingerprints of all shards.

    Raises FileError.
    """
    try:
        head, done = json.loads(file.lines[0]), list(filter(None, map(_merged, file.lines[1:])))
        return head, done, {str(name): (size, digest) for name, size, digest in head["shards"]}
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{file.journal} is not the list of an interrupted merge: {error}") from error


def _fingerprint(part: GgufFile) -> tuple[int, str]:
    """Return a file's size, and a digest of all bytes before its data."""
    header = map_file(part.path, "GGUF file")[: part.data_offset]
    return part.file_size, hashlib.sha256(header.data).hexdigest()


def _is_whole(target: Path, head: Mapping[str, Any]) -> bool:
    try:
        return bool(list(_fingerprint(open_gguf(target))) == head["whole"])
    except FileError:
        return False


class _Merged(NamedTuple):
    """Describe a merged shard: where its bytes are in the output, and their digest."""

    name: str
    ranges: Sequence[Sequence[int]] = ()
    digest: str | None = None


def _merged(line: str) -> _Merged | None:
    """Read a line of the journal; return None for one that was cut off.

    Raises ValueError, KeyError, TypeError.
    """
    if line[-1:] not in ('"', "}"):
        return None
    entry = json.loads(line)
    if isinstance(entry, str):  # as earlier versions noted it
        return _Merged(entry)
    return _Merged(entry["shard"], [(int(begin), int(size)) for begin, size in entry["ranges"]], entry["sha256"])


def _check_merged(file: Unfinished, done: Sequence[_Merged]) -> None:
    """Raise FileError if the output no longer has the bytes of a deleted shard."""
    with explained(file.target, 0):
        wrong = [each.name for each in done if each.digest and _digest(file.fd, each.ranges) != each.digest]
    if wrong:
        problem = f"{file.path} was changed since {wrong[0]} was merged into it: its bytes there have another SHA-256"
        raise FileError(problem, hint="fetch the shards again")


def _digest(fd: int, ranges: Sequence[Sequence[int]]) -> str:
    digest = hashlib.sha256()
    for begin, size in ranges:
        for at in range(begin, begin + size, HASHED_AT_ONCE):
            digest.update(os.pread(fd, min(HASHED_AT_ONCE, begin + size - at), at))
    return digest.hexdigest()


def _free_parts(
    file: Unfinished, last: str, merged: list[str], parts: Sequence[GgufFile], progress: Progress | None
) -> None:
    """Merge and delete the remaining shards, the first last; then give the output its name.

    The journal's first line has sizes and digests of the shards' headers and the output's; then there is a line for
    each merged shard, with a digest of its bytes in the output. The journal and the first shard are locked from start
    to end. A shard's bytes are durable before it is noted, and it is noted before it is deleted. The shard with the
    metadata goes last. last: the name of the set's last shard.
    """
    try:
        whole = open_gguf(file.path)
        header = map_file(file.path, "GGUF file")[: whole.data_offset].tobytes()
        offsets, infos = list(whole.offsets.values()), tuple(tensor_infos(whole))
        layout = Layout(header, offsets, whole.file_size, infos, whole.alignment)
        total, done = sum(part.file_size for part in parts), 0
        for part in reversed(parts):
            moves, _ = _moves(part, layout, whole.offsets, part.path.name == last)
            with nullcontext() if part is parts[0] else held(part.path):  # the first is held all the time
                copy_ranges(part.path, file.fd, moves, progress_of(progress, done, total, part.path.name))
                os.fsync(file.fd)
                if state_of(part.path) != part.state:
                    raise FileError(f"{part.path} was changed while it was read", hint=FREE_HINT)
                if not is_named(file.fd, file.path):
                    raise FileError(f"{file.path} was replaced by another program; the shards left were not deleted")
                ranges = [(to, size) for _, to, size in moves]
                digest = _digest(file.fd, ranges)
                file.note({"shard": part.path.name, "ranges": ranges, "sha256": digest})
                os.fsync(file.log)
                merged.append(part.path.name)
                part.path.unlink()
            done += part.file_size
        file.publish()
    except BaseException as error:
        if not merged:
            file.abandon()
        if isinstance(error, OSError):
            failure = atomic.explain_write_error(error, file.target, max((part.file_size for part in parts), default=0))
            raise FileError(str(failure), hint=FREE_HINT if merged else failure.hint) from error
        raise
