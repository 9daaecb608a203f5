"""Commands that write several files, killed at each step that changes a name or makes one durable.

After each kill every file and checkpoint that is there must be the old one or the new one, or be refused by our readers
by a line that names what was left; no mixture may be what other programs would open: without its first shard, or its
config.json, they do not. The same command, run again, must give the right bytes, and leave nothing beside them.

The suite kills some. Many more:

    python -m tests.fuzz.test_set_kills --count 200
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gguftools
from gguftools.io.atomic import MANIFEST
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.replacing import recover
from gguftools.lab.patching import apply_patch, make_patch
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, GgufToolsError

from ..archs.wholes import files

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "os.mkdir")  # as the interpreter audits them
EVERY = WriteOptions(threads=1, overwrite=True)
TWO = ["F16", "BF16"]
SETS = re.compile(r"(.*)-00001-of-\d{5}\.gguf")


@dataclass(frozen=True)
class Scenario:
    """prepare: puts into a folder what is there before. run: the command. Both take the models' folder and that one."""

    name: str
    prepare: Callable[[Path, Path], object]
    run: Callable[[Path, Path], object]


def _nothing(source: Path, folder: Path) -> None:
    """A folder with nothing in it."""


def _split(model: str, count: int, name: str = "s") -> Callable[[Path, Path], object]:
    return lambda source, folder: gguftools.split(
        source / f"{model}.gguf", folder / name, max_tensors=count, overwrite=True
    )


def _quantize(model: str, manifest: bool = False, recipes: str | list[str] = "F16") -> Callable[[Path, Path], object]:
    def run(source: Path, folder: Path) -> object:
        limit, output = (None, f"{folder}/") if isinstance(recipes, list) else (9, folder / "q.gguf")
        return gguftools.quantize(
            source / f"{model}.gguf",
            recipes,
            output,
            options=QuantizeOptions(max_tensors=limit),
            write=replace(EVERY, manifest=manifest),
        )

    return run


def _export(model: str, max_size: int) -> Callable[[Path, Path], object]:
    return lambda source, folder: gguftools.export(
        source / f"{model}.gguf",
        folder / "back",
        mmproj=source / f"mmproj-{model}.gguf",
        max_size=max_size,
        write=EVERY,
    )


def _arrays(model: str) -> Callable[[Path, Path], object]:
    return lambda source, folder: gguftools.export(
        source / f"{model}.gguf", f"{folder}/arrays/", tensors="blk", write=EVERY
    )


def _parts(model: str) -> Callable[[Path, Path], object]:
    return lambda source, folder: gguftools.convert(
        source / f"checkpoint-{model}", folder / "m.gguf", "f16", part="all", write=EVERY
    )


def _converted(model: str) -> Callable[[Path, Path], object]:
    return lambda source, folder: gguftools.convert_endian(
        source / f"set-{model}-00001-of-00003.gguf", "big", folder / "e.gguf", overwrite=True
    )


def _patched(source: Path, folder: Path) -> object:
    return apply_patch(
        source / "set-a-00001-of-00003.gguf", source / "a-b.delta.gguf", folder / "s.gguf", overwrite=True
    )


def _copied(source: Path, folder: Path) -> object:
    return shutil.copy(source / "a.gguf", folder / "merged.gguf")


def _merged(source: Path, folder: Path) -> object:
    return gguftools.merge(source / "set-b-00001-of-00003.gguf", folder / "merged.gguf", overwrite=True)


def _edited(source: Path, folder: Path) -> object:
    return gguftools.set_metadata(
        folder / "s-00002-of-00003.gguf", {"general.name": "x" * 100_000}, options=gguftools.EditOptions(force=True)
    )


SCENARIOS = [
    Scenario("export over a checkpoint", _export("a", 30_000), _export("b", 20_000)),
    Scenario("export to a new folder", _nothing, _export("b", 20_000)),
    Scenario("quantize to a set over a set", _quantize("a"), _quantize("b")),
    Scenario("quantize to a new set", _nothing, _quantize("b")),
    Scenario("quantize with a manifest", _quantize("a", True), _quantize("b", True)),
    Scenario("quantize by several recipes", _quantize("a", recipes=TWO), _quantize("b", recipes=TWO)),
    Scenario("split over a set", _split("a", 10), _split("b", 10)),
    Scenario("split to a new set", _nothing, _split("b", 10)),
    Scenario("patch apply over a set", _split("a", 10), _patched),
    Scenario("merge over a file", _copied, _merged),
    Scenario("convert --all-parts over both", _parts("a"), _parts("b")),
    Scenario("convert-endian over a set", _converted("a"), _converted("b")),
    Scenario("export of arrays over others", _arrays("a"), _arrays("b")),
    Scenario("set-metadata of a set", _split("a", 10), _edited),
]


def prepare_models(folder: Path) -> None:
    """Two models of one shape and of other weights, as a file, a set of three and a checkpoint, and their delta."""
    _, text, eyes = files("gemma3", folder / "made")
    for model, factor in (("a", 1.0), ("b", 2.0)):
        for path, name in ((text, f"{model}.gguf"), (eyes, f"mmproj-{model}.gguf")):
            with gguftools.open(path) as opened:
                opened.metadata["general.name"] = f"model {model}"
                for each in list(opened.tensors):
                    opened.tensors[each] = opened.tensors[each].float32() * np.float32(factor)
                opened.save(folder / name)
        gguftools.split(folder / f"{model}.gguf", folder / f"set-{model}", max_tensors=10)
        encoders = folder / f"mmproj-{model}.gguf"
        gguftools.export(folder / f"{model}.gguf", folder / f"checkpoint-{model}", mmproj=encoders)
    make_patch(folder / "set-a-00001-of-00003.gguf", folder / "set-b-00001-of-00003.gguf", folder / "a-b.delta.gguf")


def killed(call: Callable[[], object], step: int | None) -> tuple[int, int]:
    """Run in a process of its own, which is killed before its step of that number. Returns its exit code or, below 0,
    what killed it, and the steps that it took.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            steps = len(file.read())
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), steps
    code, taken = 70, 0

    def count() -> None:
        nonlocal taken
        if taken == step:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1
        os.write(writing, b".")

    def audit(event: str, _: Any) -> None:
        if event in STEPS:
            count()

    def fsync(fd: int) -> None:
        count()

    try:
        sys.addaudithook(audit)
        os.fsync = fsync
        call()
        code = 0
    except GgufToolsError as error:
        print(error, file=sys.stderr)
        code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def contents(folder: Path) -> dict[str, str]:
    """Every file by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def visible(found: dict[str, str]) -> dict[str, str]:
    """Without what has a temporary name, or is of a run that is not done; nor manifests, which are written last."""
    hidden = re.compile(r"(.*/)?\.[^/]*(/.*)?|.*\.partial(\.journal)?|.*" + re.escape(MANIFEST))
    return {name: digest for name, digest in found.items() if not hidden.fullmatch(name)}


def model_of(path: Path) -> str | None:
    """A digest of all that a file, or set, holds; None where it is refused."""
    try:
        opened = open_gguf(path)
    except GgufToolsError:
        return None
    found = hashlib.sha256(repr(list(opened.metadata.items())).encode())
    for name, tensor in opened.tensors.items():
        found.update(name.encode())
        found.update(tensor.raw())
    return found.hexdigest()


def opened_models(folder: Path) -> dict[str, str]:
    """What opens, by name: GGUF files and sets, and checkpoints by what they convert to."""
    found = {}
    for path in sorted(folder.glob("*.gguf")):
        if digest := model_of(path):
            found[path.name] = digest
    if (folder / "back").is_dir():
        with tempfile.TemporaryDirectory() as made:
            try:
                for part in ("model", "mmproj"):
                    gguftools.convert(folder / "back", Path(made) / "m.gguf", "f32", part=part, write=EVERY)
                    found[f"back {part}"] = str(model_of(Path(made) / "m.gguf"))
            except GgufToolsError:
                pass
    return found


def check_mixture(now: dict[str, str], old: dict[str, str], new: dict[str, str]) -> None:
    """Nothing that other programs would open is part old, part new: all is, or what they open first is not there."""
    for first in [name for name in now if SETS.fullmatch(name) or name.endswith("config.json")]:
        if "_config" in first or "generation" in first:
            continue
        match = SETS.fullmatch(first)
        members = re.compile(re.escape(match[1]) + r"-\d{5}-of-\d{5}\.gguf" if match else r"back/.*")
        found, before, after = (
            {name: digest for name, digest in each.items() if members.fullmatch(name)} for each in (now, old, new)
        )
        assert found in (before, after), f"{first} is there beside {sorted(found)}"


@dataclass
class Case:
    """A scenario, what its folder has before and after, and how many steps it takes."""

    scenario: Scenario
    before: Path
    old: dict[str, str]
    new: dict[str, str]
    old_models: dict[str, str]
    new_models: dict[str, str]
    steps: int


def prepared(scenario: Scenario, source: Path, work: Path) -> Case:
    before = work / "before"
    before.mkdir(parents=True)
    scenario.prepare(source, before)
    after = work / "after"
    shutil.copytree(before, after)
    code, steps = killed(lambda: scenario.run(source, after), None)
    assert code == 0, f"{scenario.name}: exit {code}"
    old, new = contents(before), contents(after)
    left = [name for name in new if name not in visible(new) and not name.endswith(MANIFEST)]
    assert not left, f"{scenario.name} left {left}"
    return Case(scenario, before, old, new, opened_models(before), opened_models(after), steps)


def recover_all(folder: Path, roll_back: bool, case: Case, state: str) -> None:
    """Complete, or undo, what is half done: then all is new, or old."""
    place = folder / "back" if (folder / "back").is_dir() else next(iter([*folder.glob("*.gguf"), folder]))
    try:
        done = recover(place, roll_back)
    except FileError:
        if roll_back and state == "all new":  # older files were being removed
            return
        raise
    if done is None:
        return
    found = visible(contents(folder))
    assert found == visible(case.old if done == "rolled back" else case.new), f"{done}: {sorted(found)}"


def kill_at(case: Case, step: int, source: Path, work: Path, ending: str) -> str:
    """Kill a run at a step, look at what is there, and run it again, or recover: what was found."""
    folder = work / "killed"
    shutil.copytree(case.before, folder)
    code, taken = killed(lambda: case.scenario.run(source, folder), step)
    assert code == -signal.SIGKILL, f"{case.scenario.name}: exit {code} after {taken} of {case.steps} steps"
    now, models = visible(contents(folder)), opened_models(folder)
    sides = [each for each in (case.old_models, case.new_models) if models.items() <= each.items()]
    assert sides, f"what opens is a mixture: {sorted(models)}"
    check_mixture(now, case.old, case.new)
    state = "all old" if now == visible(case.old) else "all new" if now == visible(case.new) else "refused, or alone"
    if ending != "again":
        recover_all(folder, ending == "undone", case, state)
    code, _ = killed(lambda: case.scenario.run(source, folder), None)
    assert code == 0, f"run again: exit {code}"
    assert contents(folder) == case.new, f"run again: {sorted(contents(folder))}"
    shutil.rmtree(folder)
    return state


def kill_many(count: int, seed: int) -> Counter[str]:
    """Kills at steps that are spread over each scenario, `count` in all, and races of two writers and a reader."""
    chance, found = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source"
        source.mkdir()
        prepare_models(source)
        cases = [prepared(each, source, Path(name) / str(n)) for n, each in enumerate(SCENARIOS)]
        total = sum(case.steps for case in cases)
        every = [(case, step) for case in cases for step in range(case.steps)]
        chosen = [every[int((n + chance.random()) * total / count)] for n in range(count)] if count < total else every
        found.update(raced(source, Path(name), max(2, count // 20)))
        for number, (case, step) in enumerate(chosen):
            ending = ("again", "again", "completed", "undone")[number % 4]
            try:
                state = kill_at(case, step, source, Path(name), ending)
            except AssertionError as error:
                raise AssertionError(f"{case.scenario.name}, killed at step {step} of {case.steps}: {error}") from error
            found[f"{case.scenario.name}: {state}"] += 1
        found["steps in all"] = total
        found["kills"] = len(chosen)
    return found


def raced(source: Path, work: Path, rounds: int) -> Counter[str]:
    """Two processes that write one set, or one checkpoint, at once, while a third reads it: how they ended."""
    pairs = {
        "split": (_split("a", 10), _split("b", 10)),
        "quantize": (_quantize("a"), _quantize("b")),
        "export": (_export("a", 30_000), _export("b", 30_000)),
    }
    found = Counter[str]()
    for name, pair in pairs.items():
        results = []
        for run in pair:
            alone = work / "alone"
            alone.mkdir(parents=True)
            run(source, alone)
            results.append((contents(alone), opened_models(alone)))
            shutil.rmtree(alone)
        for number in range(rounds):
            folder = work / "raced"
            folder.mkdir()
            if number % 2:
                pair[0](source, folder)
            codes = [
                _wait(child)
                for child in [_started(partial(run, source, folder)) for run in pair]
                + [_started(partial(_read_on, folder, [models for _, models in results]))]
            ]
            assert set(codes) <= {0, 1}, f"{name}: exit codes {codes}"
            assert codes[2] == 0, f"{name}: a mixture was read"
            assert 0 in codes[:2], f"{name}: neither wrote it"
            assert contents(folder) in [files for files, _ in results], f"{name}: {sorted(contents(folder))}"
            found[f"{name}: {codes[:2].count(1)} refused"] += 1
            shutil.rmtree(folder)
    return found


def _started(call: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        call()
        code = 0
    except GgufToolsError:
        code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _read_on(folder: Path, wanted: list[dict[str, str]]) -> None:
    """Open what is there for a while. Raises AssertionError for a mixture."""
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        for path in sorted(folder.glob("*.gguf")):
            digest = model_of(path)
            assert digest is None or digest in [models.get(path.name) for models in wanted], path
        if before := _inode(folder / "back"):
            read = opened_models(folder)
            if _inode(folder / "back") != before:  # replaced while it was read, file by file
                continue
            for name, digest in read.items():
                assert digest in [models.get(name) for models in wanted], name


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return None


def test_killed_at_steps_no_mixture_opens() -> None:
    """In a process of its own, which has no threads when it is forked."""
    command = [sys.executable, "-m", "tests.fuzz.test_set_kills", "--count", "14", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["kills"] == 14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = kill_many(arguments.count, arguments.seed)
    if arguments.json:
        print(json.dumps(found))
        return
    for outcome, times in found.items():
        print(f"{times:6}  {outcome}")


if __name__ == "__main__":
    main()
