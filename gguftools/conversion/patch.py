"""Deltas between two versions of a model: made of their files, and applied to the old one to give the new one."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from quants.arguments import PathLike
from quants.errors import FileError, OptionError

from ..files.atomic import Reads, Unnamed, check_space, check_target, explained, new_file, output_path, publish
from ..files.gguf.delta import NEW, Delta, Files, plan_delta, read_delta
from ..files.gguf.reader import GgufFile, open_gguf
from ..files.gguf.shards import set_name, shard_paths
from ..files.gguf.writer import create_ggufs
from ..files.positioned import CopyProgress, Move, PositionedInput, copy_ranges
from ..model import Model, stored_file
from ..writing.row_blocks import Progress
from .matching import Space, spans

CHUNK = 1 << 24


@dataclass(frozen=True)
class PatchReport:
    """What a delta has in it, or what was made by one.

    paths: what was written, or (dry_run) would be; nbytes: all of it. copied: bytes of the new files that are ranges of
    the old ones; fresh: those that the delta brings along; ranges: how many of both.
    """

    paths: list[Path]
    nbytes: int
    copied: int
    fresh: int
    ranges: int
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The contract of `patch --json`."""
        return {"files": list(map(str, self.paths)), "bytes": self.nbytes, "copied": self.copied, "fresh": self.fresh,
                "ranges": self.ranges, "dry_run": self.dry_run}  # fmt: skip


class _Steps:
    """Progress of several passes over files as one."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done, self.what = progress, total, 0, ""

    def add(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress(min(self.done, self.total), self.total, self.what)

    def copying(self) -> CopyProgress:
        begun = 0

        def told(done: int, total: int) -> None:
            nonlocal begun
            self.add(done - begun)
            begun = done

        return told


def make_patch(
    old: PathLike | Model, new: PathLike | Model, output: PathLike, *, overwrite: bool = False, dry_run: bool = False,
    progress: Progress | None = None,
) -> PatchReport:  # fmt: skip
    """Write what turns one version of a model's file into another: ranges that stay, and the bytes that are new.

    old, new: GGUF files, any shards of sets, or Models opened from such. output: the delta, a GGUF file of a type of
    its own. overwrite: replace a file that exists. dry_run: write nothing. progress(bytes done, of how many, what).
    Raises FileError, OptionError.
    """
    before, after = (open_gguf(stored_file(each)) for each in (old, new))
    target = output_path(output, f"{set_name(after.path)}.delta.gguf")
    reads = Reads(states={**before.states, **after.states})
    check_target(target, reads, overwrite or dry_run)
    a, b = Space(before.parts), Space(after.parts)
    steps = _Steps(progress, a.size + 2 * b.size)
    steps.what = "comparing"
    found = spans(a, b, steps.add)
    steps.what = "digests"
    digests: list[Files] = [_digests(opened.parts, steps) for opened in (before, after)]
    ranges = [(NEW if each.begin < 0 else each.begin, each.size) for each in found]
    layout = plan_delta(digests[0], digests[1], ranges)
    fresh = sum(size for begin, size in ranges if begin == NEW)
    if not dry_run:
        with create_ggufs([(target, layout)], overwrite, reads) as (file,):
            for part, moves in zip(after.parts, _fresh_moves(b, ranges, layout.offsets), strict=True):
                file.copy(part.path, moves)
    return PatchReport([target], layout.total, b.size - fresh, fresh, len(ranges), dry_run)


def _fresh_moves(new: Space, ranges: Sequence[tuple[int, int]], offsets: Sequence[int]) -> list[list[Move]]:
    """For each new file the ranges that go into the delta, one behind the other."""
    ends, at, number = list(accumulate(part.file_size for part in new.parts)), 0, 0
    found: list[list[Move]] = [[] for _ in ends]
    to = offsets[0] if offsets else 0
    for begin, size in ranges:
        end = at + size
        while at < end:
            while at >= ends[number]:
                number += 1
            piece = min(end, ends[number]) - at
            if begin == NEW:
                found[number].append((at - ends[number] + new.parts[number].file_size, to, piece))
                to += piece
            at += piece
    return found


def _digests(parts: Sequence[GgufFile], steps: _Steps) -> Files:
    found = []
    for part in parts:
        source = PositionedInput(part.path)
        found.append((part.file_size, _sha256(source.read, part.file_size, steps)))
    return tuple(found)


def _sha256(read: Callable[[int, int], Any], size: int, steps: _Steps) -> str:
    digest = hashlib.sha256()
    for begin in range(0, size, CHUNK):
        data = read(begin, min(begin + CHUNK, size))
        digest.update(data)
        steps.add(len(data))
    return digest.hexdigest()


def apply_patch(
    old: PathLike | Model, delta: PathLike, output: PathLike, *, overwrite: bool = False, dry_run: bool = False,
    progress: Progress | None = None,
) -> PatchReport:  # fmt: skip
    """Make the new version of a model's file of the old one and a delta; both versions are verified by their SHA-256.

    old: the file, any shard of a set, or a Model opened from one. output: the new file; of a set, what its shards'
    names begin with. overwrite: replace files that exist. dry_run: verify the old one, write nothing.
    progress(bytes done, of how many, what). Raises FileError, OptionError.
    """
    path = Path(delta)
    said, opened = read_delta(path), open_gguf(stored_file(old))
    named = output_path(output, f"{set_name(opened.path)}.gguf")
    targets = [named] if len(said.new) == 1 else shard_paths(named, set_name(named), len(said.new))
    reads = Reads(states={**opened.states, **said.opened.states})
    for target in targets:
        check_target(target, reads, overwrite or dry_run)
    sizes = [part.file_size for part in opened.parts]
    if sizes != [size for size, _ in said.old]:
        wanted = " + ".join(f"{size:,}" for size, _ in said.old)
        what = f"{opened.path} has {' + '.join(f'{size:,}' for size in sizes)} bytes, {path} is for {wanted}"
        raise FileError(what, hint="name the file that the delta was made from")
    total = sum(size for size, _ in said.new)
    if not dry_run:
        check_space(targets[0], total)
    steps = _Steps(progress, sum(sizes) + 2 * total)
    steps.what = f"verifying {opened.path.name}"
    for part, mine, theirs in zip(opened.parts, _digests(opened.parts, steps), said.old, strict=True):
        if mine != theirs:
            what = f"{part.path} is not the file that {path} was made from: its SHA-256 is another"
            raise FileError(what, hint="name the file that the delta was made from")
    if not dry_run:
        _write(said, opened, targets, reads, overwrite, steps)
    return PatchReport(targets, total, total - said.fresh, said.fresh, len(said.ranges), dry_run)


def _write(
    delta: Delta, opened: GgufFile, targets: Sequence[Path], reads: Reads, overwrite: bool, steps: _Steps
) -> None:
    files: list[Unnamed] = []
    with ExitStack() as stack:
        for target, (size, digest), (kept, fresh) in zip(targets, delta.new, delta.moves(), strict=True):
            file = stack.enter_context(new_file(target, size, reads=reads, overwrite=overwrite))
            files.append(file)
            steps.what = target.name
            with explained(target, size):
                os.ftruncate(file.fd, size)
                for index, part in enumerate(opened.parts):
                    moves = [move for source, move in kept if source == index]
                    if moves:
                        copy_ranges(part.path, file.fd, moves, steps.copying())
                if fresh:
                    copy_ranges(delta.path, file.fd, fresh, steps.copying())
                made = _sha256(partial(_read, file.fd), size, steps)
            if made != digest:
                what = f"what {delta.path} makes is not the file that it was made for: its SHA-256 is another"
                raise FileError(what, hint="the delta is damaged: fetch it again")
        with explained(targets[0], sum(size for size, _ in delta.new)):
            publish(*files)


def _read(fd: int, begin: int, end: int) -> bytes:
    return os.pread(fd, end - begin, begin)


def check_action(action: str) -> None:
    """Raise OptionError for anything but make and apply."""
    if action not in ("make", "apply"):
        raise OptionError(f"there is nothing to do that is called {action!r}", hint="patch make, or patch apply")
