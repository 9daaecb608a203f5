"""Wrong config.json files: conversion refuses them with an error of ours, quickly and within bounded memory, or what it
plans is sound.

The suite tries some hundred. Many more:

    python -m tests.fuzz.test_configs --count 20000 --seed 1
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gguftools
from archs.hparams.config_keys import KEYS, QUANTIZATION, ROPE_BY_LAYERS
from archs.plans.text import Plan, plan
from archs.registry import architectures
from archs.validation.model_validators import faults
from gguftools.conversion.convert import convert
from gguftools.inspection.validation import validate
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.metadata.checks import problems
from quants.errors import GgufToolsError
from tests import zoo_build
from tests.archs import checkpoints
from tests.conftest import SHARED
from tests.zoo import ZOO
from tests.zoo import entries as zoo_entries

SECONDS = 1.0  # of processor time that an answer may take
MEMORY = 300 << 20
RUN_EACH = 20  # of the plans that are sound, every so many are converted, checked and run

Json = Any
Change = Callable[[dict[str, Json], random.Random], None]


def wrong_values() -> list[Json]:
    deep: list[Json] = []
    for _ in range(40):
        deep = [deep]
    return [
        None,
        True,
        False,
        "",
        "many",
        "2",
        "auto",
        "ключ\u202e",
        [],
        {},
        [1],
        [None],
        [[]],
        ["a", 2],
        [1.5, -1],
        {"a": {"b": []}},
        {"0": "x"},
        -1,
        0,
        1,
        2,
        3,
        7,
        64,
        1.5,
        2.0,
        0.5,
        -0.0,
        -2.5,
        2**31,
        2**31 - 1,
        2**32,
        2**63,
        10**4,
        10**7,
        10**30,
        -(10**30),
        1e-320,
        1e300,
        float("nan"),
        float("inf"),
        -float("inf"),
        "x" * 100_000,
        [1] * 100_000,
        list(range(1000)),
        deep,
        {"__float__": "Infinity"},
        {"__float__": 3},
    ]


WRONG = wrong_values()
CLASSES = [name for architecture in architectures() for name in architecture.hf_classes]
NESTED = {
    "rope_scaling": ROPE_BY_LAYERS,
    "rope_parameters": ROPE_BY_LAYERS,
    "quantization_config": QUANTIZATION,
    "attn_config": dict.fromkeys(("alibi", "alibi_bias_max", "clip_qkv", "kv_n_heads", "softmax_scale")),
}
KINDS = ("linear", "yarn", "longrope", "su", "llama3", "dynamic", "proportional", "default", "mrope", "nonsense")
METHODS = ("fp8", "gptq", "awq", "bitsandbytes", "compressed-tensors", "modelopt", "mxfp4", "auto-round", "hqq")


def replace(config: dict[str, Json], chance: random.Random) -> None:
    keys = [*config] * 3 + [*KEYS]
    config[chance.choice(keys)] = chance.choice(WRONG)


def remove(config: dict[str, Json], chance: random.Random) -> None:
    config.pop(chance.choice(list(config)), None)


def resize(config: dict[str, Json], chance: random.Random) -> None:
    """A number that might be another model's."""
    numbers = [key for key, value in config.items() if type(value) in (int, float)] or ["hidden_size"]
    key = chance.choice(numbers)
    value = config.get(key, 64)
    config[key] = chance.choice((value + 1, value - 1, value * 2, value // 2, value * 1000, -value, value * 1.0))


def exchange(config: dict[str, Json], chance: random.Random) -> None:
    one, other = chance.choice(list(config)), chance.choice(list(config))
    config[one], config[other] = config[other], config[one]


def relist(config: dict[str, Json], chance: random.Random) -> None:
    lists = [key for key, value in config.items() if isinstance(value, list)]
    if not lists:
        config[chance.choice(("layer_types", "no_rope_layers", "layers_block_type"))] = [chance.choice(WRONG)] * 2
        return
    items = list(config[chance.choice(lists)])
    chance.choice((lambda: items.append(chance.choice(WRONG)), lambda: items and items.pop(), items.clear))()
    if items and chance.random() < 0.5:
        items[chance.randrange(len(items))] = chance.choice(WRONG)
    config[chance.choice(lists)] = items


def renest(config: dict[str, Json], chance: random.Random) -> None:
    name = chance.choice(list(NESTED))
    found = dict(config[name]) if isinstance(config.get(name), dict) else {}
    for key in chance.sample(list(NESTED[name]), min(len(NESTED[name]), chance.randrange(1, 5))):
        found[key] = chance.choice((*WRONG, 1.0, 2.0, 4.0, 1, 16))
    if name.startswith("rope") and chance.random() < 0.8:
        found["rope_type"] = chance.choice(KINDS)
    if name == "quantization_config" and chance.random() < 0.8:
        found["quant_method"] = chance.choice(METHODS)
    config[name] = found


def wrap(config: dict[str, Json], chance: random.Random) -> None:
    inner = dict(config)
    if chance.random() < 0.5:
        replace(inner, chance)
    config[chance.choice(("text_config", "llm_config", "language_config"))] = chance.choice((inner, inner, *WRONG))


def reclass(config: dict[str, Json], chance: random.Random) -> None:
    config["architectures"] = [chance.choice(CLASSES)]


CHANGES: tuple[Change, ...] = (
    replace,
    replace,
    replace,
    replace,
    remove,
    resize,
    resize,
    exchange,
    relist,
    renest,
    renest,
    wrap,
    reclass,
)


def changed(config: dict[str, Json], chance: random.Random) -> dict[str, Json]:
    config = json.loads(json.dumps(config))
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        chance.choice(CHANGES)(config, chance)
        if not config:
            break
    return config


class Entry:
    """A checkpoint whose config is changed again and again."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = open_checkpoint(folder)

    def attempt(self, config: dict[str, Json], run: Path | None) -> str:
        """What becomes of it. Raises AssertionError where that is not sound, and what should have been ours."""
        raw = json.loads(json.dumps(config))
        try:
            planned = plan(self.checkpoint.folder, raw, self.checkpoint.tensors, self.checkpoint.generation_config)
        except GgufToolsError as error:
            return type(error).__name__ if len(str(error)) < 1500 else "a very long message"
        check(planned)
        if run is not None:
            return self.run(config, run)
        return "planned"

    def run(self, config: dict[str, Json], folder: Path) -> str:
        """Convert it, check the file, and compute logits. Models that the runtime has no code for say so."""
        source, target = folder / "checkpoint", folder / "out.gguf"
        source.mkdir(parents=True)
        for file in self.checkpoint.folder.iterdir():
            if file.is_file():
                (source / file.name).symlink_to(file.resolve())
        (source / "config.json").unlink()
        (source / "config.json").write_text(json.dumps(config))
        try:
            convert(source, target, "F32")
            found = validate(target)
            assert found.ok, found.problems[:3]
            gguftools.load(target).logits([1, 2, 3])
        except GgufToolsError as error:
            return f"converted: {type(error).__name__}"
        finally:
            for path in [*source.iterdir(), *folder.glob("out*")]:
                path.unlink()
            source.rmdir()
        return "run"


def check(planned: Plan) -> None:
    for key in planned.metadata:
        for problem in problems(key, None, planned.metadata, planned.tensors):
            if "0; 1 or more" not in problem:  # heads of models without attention
                raise AssertionError(problem)
    for fault in faults(planned.architecture, planned.metadata, planned.tensors):
        raise AssertionError(str(fault))


def entries(folder: Path, zoo: bool) -> Iterator[Path]:
    """Checkpoints of tests/data, built below `folder`, and those of the zoo."""
    for name in checkpoints.entries():
        checkpoints.build(name, folder / name)
        yield folder / name
    if zoo and SHARED.is_dir():
        for name in zoo_entries():
            zoo_build.build(ZOO, name, folder / "zoo" / name)
            yield folder / "zoo" / name


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("part", range(4))
def test_wrong_configs(part: int, tmp_path: Path) -> None:
    names = checkpoints.entries()[part::4]
    found: Counter[str] = Counter()
    for name in names:
        checkpoints.build(name, tmp_path / name)
        entry, chance = Entry(tmp_path / name), random.Random(f"suite:{name}")
        for i in range(6):
            found[entry.attempt(changed(entry.checkpoint.config, chance), tmp_path / "run" if i < 2 else None)] += 1
    assert found["ModelError"] > found["planned"] > 0 < found["run"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="entry:number, of a failure printed before")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    failures, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        importlib.import_module("transformers.models.auto.tokenization_auto")  # is not the reader's time
        found = [Entry(path) for path in entries(Path(folder) / "families", zoo=True)]
        for entry in list(found):
            try:
                entry.attempt(entry.checkpoint.config, None)  # imports, and what is read once
            except AssertionError as error:
                print(f"{entry.checkpoint.folder.name} as it is: {error}", file=sys.stderr)
                found.remove(entry)
        found[0].attempt(found[0].checkpoint.config, Path(folder) / "run")
        warnings.simplefilter("error")
        before, begin = peak_memory(), time.perf_counter()
        for i in range(arguments.count):
            chance = random.Random(f"{arguments.seed}:{i}")
            entry = found[i % len(found)]
            config = changed(entry.checkpoint.config, chance)
            if arguments.only and int(arguments.only) != i:
                continue
            run = Path(folder) / "run" if i % RUN_EACH == 0 else None
            start, memory = time.process_time(), peak_memory()
            try:
                outcome = entry.attempt(config, run)
                spent = time.process_time() - start
                slowest = max(slowest, spent if run is None else 0.0)
                assert run or spent < SECONDS, f"took {spent:.1f} s of processor time"
                assert peak_memory() - memory < MEMORY, f"took {peak_memory() - memory >> 20} MB"
                outcomes[outcome] += 1
            except Exception as error:
                failures += 1
                where = traceback.extract_tb(error.__traceback__)[-1]
                differing = {
                    k: str(v)[:80] for k, v in config.items() if entry.checkpoint.config.get(k, ...) != v or v != v
                }
                print(
                    f"{i} {entry.checkpoint.folder.name}: {type(error).__name__}: {str(error)[:200]} "
                    f"({Path(where.filename).name}:{where.lineno})\n  {differing}",
                    file=sys.stderr,
                )
        seconds, memory = time.perf_counter() - begin, peak_memory() - before
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8}  {outcome}")
    print(
        f"{failures} failures in {arguments.count} configs, {seconds:.0f} s, slowest {slowest:.2f} s of processor "
        f"time, peak memory +{memory >> 20} MB"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    sys.exit(main())
