"""Make deltas between two versions of a model, and apply them to the old version."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from quants.arguments import PathLike, wrong
from quants.errors import FileError, OptionError
from quants.spelling import quote

from ...io.atomic import InputFiles, check_space, check_target, output_path
from ...io.gguf.copies import Copy, Read, planned_traffic, warning_of, write_copies
from ...io.gguf.reader import GgufFile, open_gguf
from ...io.gguf.shards import set_name, shard_paths
from ...io.positioned import Move
from ...io.stores.path import StorePath, located
from ...io.stores.pieces import ByteSource, Piece, Traffic
from ...io.stores.views import View
from ...models.model import Model, stored_file
from ...writing.row_blocks import Progress
from .delta import NEW, Delta, Files, check_digest, digest_of, plan_delta, read_delta
from .matching import Space, spans

CHUNK = 1 << 24


@dataclass(frozen=True)
class PatchReport:
    """A delta that was made, or files that were made by one.

    paths: files that were written, or (dry_run) would be; nbytes: all of them. copied: bytes of the new files from the
    old ones; fresh: from the delta; ranges: number of both. traffic: bytes read from and written to a store. warnings:
    about avoidable transfers.
    """

    paths: list[Path]
    nbytes: int
    copied: int
    fresh: int
    ranges: int
    dry_run: bool = False
    traffic: Traffic | None = None
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the contract of `patch --json`."""
        return {
            "files": list(map(str, self.paths)),
            "size_bytes": self.nbytes,
            "copied": self.copied,
            "fresh": self.fresh,
            "ranges": self.ranges,
            "dry_run": self.dry_run,
            "warnings": self.warnings,
            "store": self.traffic.as_dict() if self.traffic else None,
        }


class _Steps:
    """Progress of several passes over files as one."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done, self.what = progress, total, 0, ""

    def add(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress(min(self.done, self.total), self.total, self.what)

    def going_on(self) -> Progress:
        """Return a progress function for work that counts its own bytes."""
        begun = self.done

        def report(done: int, total: int, what: str) -> None:
            self.what = what
            self.done = begun
            self.add(done)

        return report


def patch(
    action: Literal["make", "apply"],
    old: PathLike | Model,
    other: PathLike | Model,
    output: PathLike,
    *,
    trust: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PatchReport:
    """Make or apply a delta between two versions of a model's file, as the command `patch` does.

    action: "make" is `make_patch(old, other, output)`, where `other` is the new version; "apply" is
    `apply_patch(old, other, output)`, where it is the delta. trust: check only the old file's size.
    overwrite: replace a file. dry_run: write nothing. progress(bytes done, of how many, item).
    Raises what these raise, and OptionError for another action, and for `trust` with "make".
    """
    if action not in ("make", "apply"):
        raise OptionError(f"there is nothing to do that is called {quote(action)}", "the action is make or apply")
    if action == "make":
        if trust:
            raise OptionError("`trust` goes with apply", "make verifies nothing: it reads both files")
        return make_patch(old, other, output, overwrite=overwrite, dry_run=dry_run, progress=progress)
    if not isinstance(other, (str, os.PathLike)):
        raise wrong("the delta", other, "a path")
    return apply_patch(old, other, output, overwrite=overwrite, dry_run=dry_run, trust=trust, progress=progress)


def make_patch(
    old: PathLike | Model,
    new: PathLike | Model,
    output: PathLike,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PatchReport:
    """Write a delta that turns one version of a model's file into another.

    old, new: GGUF files, any shards of sets, or Models opened from such; files in a store are read once. output: the
    delta, a GGUF file of its own type. overwrite: replace an existing file. dry_run: write nothing. progress(bytes
    done, of how many, what). Raises FileError, OptionError.
    """
    before, after = (open_gguf(stored_file(each)) for each in (old, new))
    target = output_path(output, f"{set_name(after.path)}.delta.gguf")
    reads = InputFiles(states={**before.states, **after.states})
    check_target(target, reads, overwrite or dry_run)
    a, b = Space(before.parts), Space(after.parts)
    steps = _Steps(progress, a.size + 2 * b.size)
    steps.what = "comparing"
    matched = spans(a, b, steps.add)
    steps.what = "digests"
    old_files, new_files = (_digests(space, steps) for space in (a, b))
    ranges = [(NEW if each.begin < 0 else each.begin, each.size) for each in matched]
    moves, originals = _fresh_moves(b, ranges), [part.original for part in b.parts]
    pieces = [Piece(each, begin, size) for each, own in zip(originals, moves, strict=True) for begin, _, size in own]
    fresh = (data for piece in pieces for data in piece.read())
    versions = _versions(before)
    digest = digest_of(old_files, new_files, ranges, fresh)
    layout = plan_delta(old_files, new_files, ranges, digest, versions)
    shift = layout.offsets[0] if layout.offsets else 0
    placed = [[(begin, to + shift, size) for begin, to, size in own] for own in moves]
    copies = [Copy(target, layout.header, layout.total, list(zip(originals, placed, strict=True)))]
    traffic = planned_traffic(copies) if dry_run else write_copies(copies, overwrite, reads)
    stored = [part.original for part in (*a.parts, *b.parts) if part.is_stored]
    if stored or isinstance(target, StorePath):
        traffic = Traffic(sum(each.fetched for each in stored), traffic.sent if traffic else 0)
    count = sum(piece.size for piece in pieces)
    return PatchReport([target], layout.total, b.size - count, count, len(ranges), dry_run, traffic)


def _fresh_moves(new: Space, ranges: Sequence[tuple[int, int]]) -> list[list[Move]]:
    """Return for each new file the ranges that go into the delta, one after the other from 0 on."""
    ends, at, number = list(accumulate(part.file_size for part in new.parts)), 0, 0
    moves: list[list[Move]] = [[] for _ in ends]
    to = 0
    for begin, size in ranges:
        end = at + size
        while at < end:
            while at >= ends[number]:
                number += 1
            piece = min(end, ends[number]) - at
            if begin == NEW:
                moves[number].append((at - ends[number] + new.parts[number].file_size, to, piece))
                to += piece
            at += piece
    return moves


def _digests(space: Space, steps: _Steps) -> Files:
    return tuple(
        (part.file_size, raw.followed.sha256(steps.add) if isinstance(raw, View) else _sha256_of(part, steps))
        for part, raw in zip(space.parts, space.raw, strict=True)
    )


def _sha256_of(part: GgufFile, steps: _Steps) -> str:
    return _sha256(part.original.read, part.file_size, steps)


def _sha256(read: Callable[[int, int], Any], size: int, steps: _Steps) -> str:
    digest = hashlib.sha256()
    for begin in range(0, size, CHUNK):
        data = read(begin, min(begin + CHUNK, size))
        digest.update(data)
        steps.add(len(data))
    return digest.hexdigest()


def apply_patch(
    old: PathLike | Model,
    delta: PathLike,
    output: PathLike,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> PatchReport:
    """Make the new version of a model's file from the old one and a delta; both are verified by their SHA-256.

    old: the file, any shard of a set, or a Model opened from one. output: the new file; of a set, the beginning of its
    shards' names. overwrite: replace existing files. dry_run: verify the old file, write nothing. Into a store, the
    delta is verified by its own SHA-256, and the old file by its version, or read completely if the delta has no
    version; trust: check only its size. progress(bytes done, of how many, what). Raises FileError, OptionError.
    """
    path = located(delta)
    patch, opened = read_delta(path), open_gguf(stored_file(old))
    named = output_path(output, f"{set_name(opened.path)}.gguf")
    targets = [named] if len(patch.new) == 1 else shard_paths(named, set_name(named), len(patch.new))
    reads = InputFiles(states={**opened.states, **patch.opened.states})
    for target in targets:
        check_target(target, reads, overwrite or dry_run)
    sizes = [part.file_size for part in opened.parts]
    if sizes != [size for size, _ in patch.old]:
        wanted = " + ".join(f"{size:,}" for size, _ in patch.old)
        what = f"{opened.path} has {' + '.join(f'{size:,}' for size in sizes)} bytes, {path} is for {wanted}"
        raise FileError(what, hint="name the file that the delta was made from")
    total, is_local = sum(size for size, _ in patch.new), not isinstance(named, StorePath)
    if not dry_run:
        check_space(targets[0], total)
    steps = _Steps(progress, sum(sizes) + (2 if is_local else 1) * total)
    steps.what = f"verifying {opened.path.name}"
    if not is_local:
        check_digest(patch)
    is_verified_later = is_local and opened.is_stored and not dry_run  # the new file is verified instead
    warnings = []
    if not (is_verified_later or (trust and not is_local) or _is_version(opened, patch)):
        _verify(opened, patch, steps)
        if opened.is_stored:
            warnings.append(f"{opened.path} was read as a whole, {sum(sizes):,} bytes, to verify it; `trust` does not")
    copies = _copies(patch, opened, targets)
    if dry_run:
        traffic = planned_traffic(copies)
    else:
        check = _check(patch, steps, opened) if is_local else None
        traffic = write_copies(copies, overwrite, reads, steps.going_on(), check=check)
    warnings += filter(None, [warning_of(copies, traffic)])
    fresh = patch.fresh
    return PatchReport(targets, total, total - fresh, fresh, len(patch.ranges), dry_run, traffic, warnings)


def _is_version(opened: GgufFile, delta: Delta) -> bool:
    """Return whether the old files are the objects that the delta was made from."""
    return bool(delta.versions) and delta.versions == tuple(_versions(opened))


def _versions(opened: GgufFile) -> list[str]:
    """Return entity tags of S3, which change with the bytes; other stores' versions are not comparable."""
    tags = [part.stored if str(part.path).startswith("s3://") else "" for part in opened.parts]
    return tags if all(tags) else []


def _verify(opened: GgufFile, delta: Delta, steps: _Steps) -> None:
    for part, mine, theirs in zip(opened.parts, _digests(Space(opened.parts), steps), delta.old, strict=True):
        if mine != theirs:
            what = f"{part.path} is not the file that {delta.path} was made from: its SHA-256 is another"
            raise FileError(what, hint="name the file that the delta was made from")


def _copies(delta: Delta, opened: GgufFile, targets: Sequence[Path]) -> list[Copy]:
    """Return the new files as ranges of the old ones and of the delta."""
    originals, copies = [part.original for part in opened.parts], []
    for target, (size, _), (kept, fresh) in zip(targets, delta.new, delta.moves(), strict=True):
        moves: list[list[Move]] = [[] for _ in originals]
        for source, move in kept:
            moves[source].append(move)
        sources: list[tuple[ByteSource, Sequence[Move]]] = [
            *zip(originals, moves, strict=True),
            (delta.original, fresh),
        ]
        copies.append(Copy(target, b"", size, sources))
    return copies


def _check(delta: Delta, steps: _Steps, opened: GgufFile) -> Callable[[int, Read], None]:
    """Return a function that refuses a file without the expected digest."""

    def check(number: int, read: Read) -> None:
        size, digest = delta.new[number]
        if _sha256(read, size, steps) != digest:
            what = f"what {delta.path} makes is not the file that it was made for: its SHA-256 is another"
            other = f"{opened.path} is not the file that it was made from, or " if opened.is_stored else ""
            raise FileError(what, f"{other}the delta is damaged: fetch it again")

    return check
