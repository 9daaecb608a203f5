"""Edit the metadata of a GGUF file: in place if the new header fits before the data, else by an atomic copy."""

import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archs.metadata import Metadata, Value, ValueType
from quants.errors import FileError

from ..atomic import NOTHING, InputFiles
from ..locks import held, state_of
from ..positioned import CLONE_BLOCK, CopyProgress, Move
from ..stores.path import StorePath, located
from ..stores.pieces import Traffic
from . import writer
from .copies import Copy, planned_traffic, warning_of, write_copies
from .journal import overwrite
from .reader import GgufFile, align, map_file, open_gguf, paths_of_set, refuse_interrupted
from .shards import SHARD_NAME
from .writer import RESERVE_KEY, RESERVE_OVERHEAD, Layout, plan_file, tensor_infos


@dataclass(frozen=True)
class Edit:
    """Describe what an edit of the file at `path` did: it wrote header bytes in place, or all of a new file.

    bytes_written: for an object in a store, those that were sent. traffic: in a store. warning: about that traffic.
    """

    path: Path
    in_place: bool
    bytes_written: int
    traffic: Traffic | None = None
    warning: str | None = None


@contextmanager
def open_locked(path: Path) -> Iterator[tuple[GgufFile, int | None]]:
    """Open a GGUF file, or a shard's set, and lock it for the block; yields the file and its lock's descriptor.

    An object in a store has no lock: its new version is written on the condition that the old one is still there.
    Raises FileError.
    """
    if isinstance(path, StorePath):
        yield open_gguf(path), None
        return
    holder = open_gguf(path).parts[0].path if SHARD_NAME.fullmatch(path.name) else path
    with held(holder) as lock:
        refuse_interrupted(holder)
        yield open_gguf(path), lock


def edit_metadata(
    path: Path | GgufFile,
    metadata: Metadata,
    output: Path | None = None,
    reserve: int = 0,
    overwrite_output: bool = False,
    progress: CopyProgress | None = None,
    reads: InputFiles = NOTHING,
    lock: int | None = None,
) -> Edit:
    """Give a GGUF file, named or just opened, new metadata; its tensors stay as they are, byte for byte.

    The file is changed in place if the new header fits before the data; the key `gguf.pad` holds the slack. Else, and
    if `output` is given, a copy is written, which gets the name when it is complete. For an object in a store, a new
    version is written; it is refused if the object changed since it was opened. Of a set, any shard may be named: the
    first one, which holds the metadata, is changed and keeps its `split.*` keys. After an edit in place, open the file
    again: its arrays are views of the old bytes.

    reserve: bytes of slack for later edits; a file with less is copied. progress(done, total): bytes copied. reads:
    other input files. lock: the file's descriptor, if the caller has it locked: see `open_locked`. Raises FileError.
    """
    opened, metadata = _holder(path, metadata)
    if opened.split_count > 1 and output is not None:
        raise FileError(f"{opened.path} is part of a split set, which is edited where it is", hint="merge it first")
    if output is not None:
        reads = replace(reads, states={**reads.states, **opened.states})
        return _write_copy(opened, metadata, located(output), reserve, reads, overwrite_output, progress)
    if opened.is_stored:
        copy = _planned_copy(opened, metadata, opened.path, reserve, None)
        traffic = write_copies([copy], True, reads, _labelled(progress), replaced=opened.stored)
        return Edit(opened.path, False, traffic.sent if traffic else 0, traffic, warning_of([copy], traffic))
    with held(opened.path) if lock is None else nullcontext(lock) as locked:
        if state_of(locked) != opened.state:
            raise FileError(f"{opened.path} was changed by another program meanwhile", hint="run the edit again")
        header = _fitting_header(opened, metadata, reserve)
        if header is not None:
            return _write_in_place(opened, header, locked)
        return _write_copy(opened, metadata, opened.path.resolve(), reserve, reads, True, progress, locked)


def planned_edit(path: Path | GgufFile, metadata: Metadata, output: Path | None = None, reserve: int = 0) -> Edit:
    """Return what `edit_metadata` would do. Raises FileError."""
    opened, metadata = _holder(path, metadata)
    if output is None and not opened.is_stored:
        return Edit(opened.path, _fitting_header(opened, metadata, reserve) is not None, 0)
    copy = _planned_copy(opened, metadata, output or opened.path, reserve, output)
    traffic = planned_traffic([copy])
    return Edit(copy.path, False, 0, traffic, warning_of([copy], traffic))


def _holder(path: Path | GgufFile, metadata: Metadata) -> tuple[GgufFile, Metadata]:
    """Return the file, or the first shard of a split set, and its new metadata with its `split.*` keys."""
    opened = path.parts[0] if isinstance(path, GgufFile) else open_gguf(path, join=False)
    if opened.split_count <= 1:
        return opened, metadata
    first = paths_of_set(opened)[0]
    opened = opened if first == opened.path else open_gguf(first, join=False)
    kept = metadata.copy()
    for key in opened.metadata if "split.count" not in metadata else ():
        if key.startswith("split."):
            kept[key] = opened.metadata.value(key)
    return opened, kept


def _encode(opened: GgufFile, metadata: Metadata) -> bytes:
    """Encode the header with the tensors' present offsets."""
    offsets = [offset - opened.data_offset for offset in opened.offsets.values()]
    infos = tensor_infos(opened)
    return writer.encode_header(metadata, infos, offsets, opened.magic, opened.version, opened.byte_order)


def _fitting_header(opened: GgufFile, metadata: Metadata, reserve: int) -> bytes | None:
    """Return all bytes before the data, which keeps its offset; None if the header does not fit."""
    stored = opened.original.read(0, min(opened.data_offset, opened.file_size)).tobytes()
    if not reserve and stored[: opened.header_bytes] == _encode(opened, metadata):
        return stored
    if not opened.tensors or metadata.get("general.alignment", 32) != opened.alignment:
        return None
    bare = metadata.copy()
    bare.pop(RESERVE_KEY, None)
    header = _encode(opened, bare)
    fits = not reserve and 0 <= opened.data_offset - len(header) < opened.alignment
    if RESERVE_KEY in metadata or not fits:
        # Where the old end can be kept, slack before large arrays keeps these where they are.
        for end in (opened.header_bytes, opened.data_offset):
            if end - len(header) >= reserve + RESERVE_OVERHEAD:
                return _encode(opened, _with_slack(metadata, end - len(header))).ljust(opened.data_offset, b"\0")
    return header.ljust(opened.data_offset, b"\0") if fits else None


def _with_slack(metadata: Metadata, size: int) -> Metadata:
    """Return metadata with `size` bytes of slack; an existing slack keeps its place, and so do the keys before it."""
    if RESERVE_KEY not in metadata:
        return writer.with_reserve(metadata, size)
    new = metadata.copy()
    new[RESERVE_KEY] = Value(np.zeros(size - RESERVE_OVERHEAD, np.uint8), ValueType.ARRAY, ValueType.UINT8)
    return new


def _write_in_place(opened: GgufFile, header: bytes, lock: int) -> Edit:
    """Overwrite the bytes from the first that differs to the last."""
    old = map_file(opened.path, "GGUF file")[: opened.data_offset]
    new = np.frombuffer(header, np.uint8)
    changed = np.flatnonzero(old != new)
    if not len(changed):
        return Edit(opened.path, True, 0)
    first, last = int(changed[0]), int(changed[-1])
    overwrite(lock, opened.path, first, header[first : last + 1], opened.data_offset)
    return Edit(opened.path, True, last + 1 - first)


def _write_copy(
    opened: GgufFile,
    metadata: Metadata,
    target: Path,
    reserve: int,
    reads: InputFiles,
    overwrite_target: bool,
    progress: CopyProgress | None,
    lock: int | None = None,
) -> Edit:
    """Write the new file. lock: descriptor of the target, if it is the file itself."""
    copy, mode = _planned_copy(opened, metadata, target, reserve, target), None
    if not isinstance(opened.path, StorePath):
        try:
            mode = stat.S_IMODE(opened.path.stat().st_mode) | stat.S_IWUSR  # of a new file, that can be edited
        except OSError as error:
            raise FileError(f"{opened.path} cannot be read: {error.strerror}") from error
    traffic = write_copies([copy], overwrite_target, reads, _labelled(progress), mode=mode, locked=lock)
    written = traffic.sent if traffic and isinstance(target, StorePath) else copy.total
    return Edit(opened.path if lock is not None else target, False, written, traffic, warning_of([copy], traffic))


def _labelled(progress: CopyProgress | None) -> Callable[[int, int, str], None] | None:
    return None if progress is None else lambda done, total, _: progress(done, total)


def _planned_copy(opened: GgufFile, metadata: Metadata, target: Path, reserve: int, output: Path | None) -> Copy:
    """Return the new file. output: None if it replaces the old one, and so may keep its header's length."""
    header = None if output is not None else _fitting_header(opened, metadata, reserve)
    if header is not None:
        end = len(header)
        moves = [(end, end, opened.file_size - end)] if opened.file_size > end else []
        return Copy(target, header, opened.file_size, [(opened.original, moves)])
    layout, moves = _plan_copy(opened, metadata, reserve)
    return Copy(target, layout.header, layout.total, [(opened.original, moves)])


def _plan_copy(opened: GgufFile, metadata: Metadata, reserve: int) -> tuple[Layout, list[Move]]:
    """Return the layout of the new file, and what to copy into it."""
    if reserve:
        metadata = _with_slack(metadata, reserve + RESERVE_OVERHEAD)
    infos, alignment = tensor_infos(opened), metadata.get("general.alignment", 32)
    if alignment != opened.alignment:
        layout = plan_file(metadata, infos, 32, 0, opened.magic, opened.version, opened.byte_order)
        moves = [(a, b, i.nbytes) for a, b, i in zip(opened.offsets.values(), layout.offsets, infos, strict=True)]
        return replace(layout, total=max([len(layout.header), *(to + size for _, to, size in moves)])), moves
    header = _encode(opened, metadata)
    if reserve and opened.tensors:  # data that moves by whole blocks can share them with the old file
        distance = align(len(header), alignment) - opened.data_offset
        more = (-distance) % CLONE_BLOCK
        header = _encode(opened, _with_slack(metadata, reserve + RESERVE_OVERHEAD + more))
    if opened.tensors or opened.file_size > opened.header_bytes or opened.header_bytes == opened.data_offset:
        header = header.ljust(align(len(header), alignment), b"\0")
    size = max(opened.file_size - opened.data_offset, 0)
    distance = len(header) - opened.data_offset
    offsets = [offset + distance for offset in opened.offsets.values()]
    layout = Layout(header, offsets, len(header) + size, tuple(infos), alignment)
    return layout, [(opened.data_offset, len(header), size)] if size else []
