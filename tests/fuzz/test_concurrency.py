"""Two and three processes that write one file, or write what another reads, at once.

After each round every file must be whole, every edit that was reported done must be in the file, and no shard may be
gone without the file that it was merged into. The suite does a few rounds of each pair of commands. Many more:

    python -m tests.fuzz.test_concurrency --rounds 200
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from archs.metadata import Metadata
from gguftools.conversion.endianness import convert_endian
from gguftools.conversion.export import export
from gguftools.conversion.quantize import quantize
from gguftools.conversion.shards import merge, split
from gguftools.inspection import hashing
from gguftools.inspection.hashing import read_manifest, write_manifest
from gguftools.io.checkpoint.safetensors import open_safetensors
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.metadata.edit import EditOptions, set_metadata
from gguftools.quantization.imatrix import Entry, ImportanceMatrix, read_imatrix, write_imatrix
from gguftools.quantization.imatrix import merge as merge_matrices
from gguftools.writing.options import WriteOptions
from quants import format_named
from quants.errors import GgufToolsError

from ..gguftools.tiny_models import create_gguf

TENSORS = 6
SHARDS = [f"s-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
OUT = "out.safetensors"  # a name that all of them write
DEADLINE = 60.0


@dataclass(frozen=True)
class Command:
    """run(number): what one process does; the number makes its edit its own. edits: the file whose key `edit.NUMBER` it
    sets. target: what it writes.
    """

    name: str
    run: Callable[[int], object]
    edits: str | None = None
    target: str | None = None


def edit(path: str, large: bool = False) -> Callable[[int], object]:
    value = "x" * 3000 if large else "x"
    return lambda number: set_metadata(path, {f"edit.{number}": value}, options=EditOptions(new=True))


def merge_imatrices(_: int) -> None:
    write_imatrix(merge_matrices([read_imatrix(Path("k"))] * 2), Path(OUT), OVERWRITE, [Path("k")])


def hash_to_manifest(_: int) -> None:
    write_manifest(OUT, hashing.hash("m.gguf").digests, OVERWRITE, ["m.gguf"])


OVERWRITE = False  # whether commands are given --overwrite in this round
COMMANDS = [
    Command("set-metadata", edit("m.gguf"), edits="m.gguf"),
    Command("set-metadata by a copy", edit("m.gguf", large=True), edits="m.gguf"),
    Command("set-metadata of a shard", edit(SHARDS[0]), edits=SHARDS[0]),
    Command("set-metadata of the output", edit(OUT), edits=OUT),
    Command("set-metadata -o", lambda n: set_metadata("m.gguf", output=OUT, overwrite=OVERWRITE), target=OUT),
    Command(
        "quantize",
        lambda n: quantize("m.gguf", "Q8_0", OUT, write=WriteOptions(overwrite=OVERWRITE, threads=1)),
        target=OUT,
    ),
    Command(
        "quantize --resume",
        lambda n: quantize("m.gguf", "Q8_0", OUT, write=WriteOptions(overwrite=OVERWRITE, resume=True, threads=1)),
        target=OUT,
    ),
    Command("merge", lambda n: merge(SHARDS[1], OUT, overwrite=OVERWRITE), target=OUT),
    Command("merge --free", lambda n: merge(SHARDS[0], OUT, free=True, overwrite=OVERWRITE), target=OUT),
    Command("split", lambda n: split("m.gguf", "s", max_tensors=2, overwrite=OVERWRITE), target=SHARDS[0]),
    Command("convert-endian", lambda n: convert_endian("m.gguf", "big", OUT, overwrite=OVERWRITE), target=OUT),
    Command("export", lambda n: export("m.gguf", OUT, write=WriteOptions(overwrite=OVERWRITE, threads=1)), target=OUT),
    Command("hash -o", hash_to_manifest, target=OUT),
    Command("imatrix-info --merge", merge_imatrices, target=OUT),
]


def prepare(folder: Path) -> None:
    """What each round begins with: a model, its shards, an importance matrix."""
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    metadata["general.name"] = "m"
    metadata["llama.block_count"] = 1
    metadata["tokens"] = [f"token {i}" for i in range(500)]
    infos = [TensorInfo(f"blk.0.t{i}.weight", (16, 64), format_named("F32")) for i in range(TENSORS)]
    values = np.random.default_rng(1).standard_normal((TENSORS, 16, 64)).astype(np.float32)
    with create_gguf(folder / "m.gguf", plan_file(metadata, infos, reserve=400)) as output:
        for i, rows in enumerate(values):
            output.write(i, 0, rows.view(np.uint8))
    split(folder / "m.gguf", folder / "s", max_tensors=2)
    entries = {"blk.0.t0.weight": Entry(np.ones((1, 64), np.float32), np.ones(1, np.float32))}
    write_imatrix(ImportanceMatrix(folder / "k", entries, ("text.txt",), 4, 512), folder / "k")


def begin(command: Command, number: int, folder: Path) -> int:
    """Run the command in a process of its own: exit code 0, 1 where it was refused, 70 for a bug."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.chdir(folder)
        command.run(number)
        code = 0
    except GgufToolsError as error:
        (folder / f"{number}.refused").write_text(str(error))
        code = 1
    except BaseException:
        (folder / f"{number}.bug").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def round_of(
    commands: Sequence[Command], prepared: Path, folder: Path, chance: random.Random, exists: bool
) -> list[int]:
    """The exit codes of commands that began at almost the same moment; fails where something was lost."""
    global OVERWRITE
    OVERWRITE = exists
    shutil.copytree(prepared, folder)
    if not exists and any(command.name == "split" for command in commands):
        for shard in SHARDS:
            (folder / shard).unlink()
    if exists:
        shutil.copy(prepared / "m.gguf", folder / OUT)
    children = []
    for number, command in enumerate(commands):
        children.append(begin(command, number, folder))
        time.sleep(chance.choice((0, 0, 0.002, 0.01)))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    problems = list(lost(commands, codes, folder, exists))
    if problems:
        said = [f"{path.name}: {path.read_text()}" for path in folder.glob("*.refused")]
        names = ", ".join(f"{each.name} ({code})" for each, code in zip(commands, codes, strict=True))
        left = sorted(path.name for path in folder.iterdir())
        raise AssertionError(f"{names}: {'; '.join(problems)}; {' '.join(said)}; {left}")
    shutil.rmtree(folder)
    return codes


def lost(commands: Sequence[Command], codes: Sequence[int], folder: Path, existed: bool) -> Iterator[str]:
    """What went wrong."""
    for path in folder.glob("*.bug"):
        yield path.read_text()
    if (folder / f"{OUT}.merging.json").exists():  # another wrote the output while shards were merged
        merge(folder / SHARDS[0], folder / OUT, free=True, overwrite=True)
        assert len(open_gguf(folder / OUT).tensors) == TENSORS
    if (folder / f"{OUT}.partial.journal").exists():
        quantize(folder / "m.gguf", "Q8_0", folder / OUT, write=WriteOptions(resume=True, overwrite=True))
    yield from (f"{path.name} is left" for path in folder.iterdir() if "partial" in path.name or "merging" in path.name)
    yield from (f"{path.name} is left" for path in folder.glob("*.journal"))
    done = [command for command, code in zip(commands, codes, strict=True) if code == 0]
    shards = [shard for shard in SHARDS if (folder / shard).exists()]
    merged = any(command.name == "merge --free" for command in done)
    if len(shards) not in (0, len(SHARDS)):
        yield f"of the shards only {shards} are left"
    if merged and shards and not any(command.name == "split" for command in done):
        yield "merged shards are left"
    for name in ("m.gguf", *shards, OUT):
        if (folder / name).exists():
            try:
                check(folder / name)
            except (GgufToolsError, AssertionError) as error:
                yield f"{name}: {error!r}"
    writers = [command for command in done if command.target == OUT]
    if writers and not (folder / OUT).exists():
        yield "the output is gone"
    if not existed and len(writers) > 1:
        yield f"{len(writers)} wrote the output, which none was allowed to replace"
    for number, command in enumerate(commands):
        if codes[number] or command.edits is None:
            continue
        where = command.edits
        if where == OUT and writers:
            continue  # replaced later by who was allowed to, or edited later
        if where in SHARDS and (merged or any(each.name == "split" for each in done)):
            where = OUT if merged and not shards else ""
        if where and f"edit.{number}" not in open_gguf(folder / where).metadata:
            yield f"edit {number} of {where} was reported done and is lost"


def check(path: Path) -> None:
    """Raise an error where a file is not whole: its header, and the data of its tensors where it is a model."""
    start = path.read_bytes()[:8]
    if start[:4] != b"GGUF":
        if b"{" in start or path.read_bytes()[8:9] == b"{":
            assert len(open_safetensors(path)) == TENSORS
        else:
            assert len(read_manifest(path)) == TENSORS + 1
        return
    opened = open_gguf(path)
    if opened.metadata.get("general.type") == "imatrix":
        assert read_imatrix(path).entries
        return
    assert len(opened.tensors) == TENSORS
    assert opened.metadata["tokens"][499] == "token 499"
    for tensor in opened.tensors.values():
        digest = hashlib.sha256(tensor.raw().tobytes()).hexdigest()
        assert digest == expected(tensor.name, tensor.format.name), tensor.name


EXPECTED: dict[tuple[str, str], str] = {}


def expected(name: str, form: str) -> str:
    """What the tensor's bytes are, by the first file that is written without another process beside."""
    return EXPECTED[name, form]


def learn(prepared: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        quantize(prepared / "m.gguf", "Q8_0", Path(folder) / "q.gguf")
        for path in (prepared / "m.gguf", Path(folder) / "q.gguf"):
            for tensor in open_gguf(path).tensors.values():
                EXPECTED[tensor.name, tensor.format.name] = hashlib.sha256(tensor.raw().tobytes()).hexdigest()


def run(
    rounds: int,
    processes: Sequence[int],
    seed: int,
    folder: Path,
    say: Callable[[str], object],
    commands: Sequence[Command] = COMMANDS,
    every: int = 1,
) -> Counter[str]:
    """So many rounds of each pair of commands, or of one pair of `every`, with so many processes."""
    chance, seen = random.Random(seed), Counter[str]()
    prepared = folder / "prepared"
    prepared.mkdir()
    prepare(prepared)
    learn(prepared)
    for pair in itertools.islice(itertools.combinations_with_replacement(commands, 2), 0, None, every):
        for count in processes:
            for _ in range(rounds):
                chosen = [*pair, *chance.choices(pair, k=count - 2)]
                chance.shuffle(chosen)
                codes = round_of(chosen, prepared, folder / "round", chance, exists=chance.random() < 0.5)
                seen["rounds"] += 1
                seen["done"] += codes.count(0)
                seen["refused"] += codes.count(1)
        say(f"{pair[0].name} + {pair[1].name}: {dict(seen)}")
    return seen


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # of fork, from 3.12 on
def test_no_write_is_lost(tmp_path: Path) -> None:
    seen = run(1, (2,), 1, tmp_path, lambda text: None, every=4)
    assert seen["done"] > seen["rounds"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=Path, help="where to work; the fastest is one in memory")
    parser.add_argument("--only", nargs="*", help="pairs of these commands; all if not given")
    options = parser.parse_args()
    chosen = [command for command in COMMANDS if not options.only or command.name in options.only]
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        seen = run(options.rounds, (2, 3), options.seed, Path(folder), lambda text: print(text, flush=True), chosen)
    print(f"{seen['rounds']} rounds: {seen['done']} commands done, {seen['refused']} refused, nothing lost")


if __name__ == "__main__":
    sys.exit(main())
